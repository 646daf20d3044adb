"""What pyproject.toml promises."""

from __future__ import annotations

from packaging.requirements import Requirement

from accel_bridge import __version__
from accel_bridge.process.extras import EXTRAS
from accel_bridge.process.lazy import PARTS
from distribution.support import DIRECTORIES, pyproject


def test_a_missing_module_is_sent_to_the_extra_that_brings_it() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        brought = {Requirement(text).name for text in extras[extra]}
        assert {module, f"{module}-core"} & brought, module


def test_a_checkout_is_made_whole_as_the_package_is_laid_out() -> None:
    assert {f"accel_bridge/{part}" for part in PARTS} == set(DIRECTORIES.values()) - {
        "accel_bridge"
    }


def test_the_version_is_the_same_everywhere() -> None:
    assert pyproject()["project"]["version"] == __version__
