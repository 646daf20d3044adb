"""What pyproject.toml promises."""

from __future__ import annotations

import re
import warnings

import pytest
from packaging.requirements import Requirement

from accel_bridge import __version__
from accel_bridge._extras import EXTRAS
from accel_bridge._source_tree import PARTS
from distribution.support import FOLDERS, ROOT, pyproject

#: Advice that does not work: accel_bridge is in no package index, and of Megatron's versions only
#: some can be used.
BAD_ADVICE = re.compile(
    r"accel[-_]bridge\[|pip install (?:-\S+ )*accel[-_]bridge\b"
    r"|megatron-core\[training\](?!>=)|(?:pip install|--no-deps) megatron-core(?![=>{])"
)


def test_the_extras_that_users_are_told_of_exist() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    assert {"megatron", "cuda", "ascend", "preprocess", "report", "dev"} <= set(extras)


def test_a_missing_module_is_sent_to_the_extra_that_brings_it() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        brought = {Requirement(text).name for text in extras[extra]}
        assert {module, f"{module}-core"} & brought, module


def test_a_checkout_is_made_whole_as_the_package_is_laid_out() -> None:
    assert {f"accel_bridge/{part}" for part in PARTS} == set(FOLDERS.values()) - {"accel_bridge"}


def test_no_page_and_no_message_gives_advice_that_does_not_work() -> None:
    pages = [ROOT / "README.md", ROOT / "README.zh-CN.md", *(ROOT / "docs").rglob("*.md")]
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    for path in (*pages, *modules, *ROOT.glob("*.md")):
        assert BAD_ADVICE.findall(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.parametrize(
    "advice",
    [
        "pip install 'accel-bridge[ray]'",
        "pip install --upgrade accel-bridge",
        "pip install 'megatron-core[training]'",
        "pip install megatron-core",
    ],
)
def test_such_advice_is_noticed(advice: str) -> None:
    assert BAD_ADVICE.search(advice)


def test_the_version_is_the_same_everywhere() -> None:
    assert pyproject()["project"]["version"] == __version__


def test_the_python_of_the_repository_is_the_one_that_is_tested() -> None:
    assert (ROOT / ".python-version").read_text() == "3.12\n"


def test_a_warning_in_our_own_code_is_an_error() -> None:
    with pytest.raises(UserWarning, match="planted"):
        warnings.warn_explicit("planted", UserWarning, "x.py", 1, module="accel_bridge.planted")
    with pytest.warns(UserWarning, match="elsewhere"):
        warnings.warn_explicit("elsewhere", UserWarning, "x.py", 1, module="somebody.planted")
