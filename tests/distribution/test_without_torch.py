"""Where the extras are not installed, what needs one names it and the rest works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge.process import extras
from accel_bridge.process.extras import EXTRAS, MissingPackage, explained, install, require

#: Python imports it at start-up when its directory is on the path.
SITECUSTOMIZE = f"""
import sys
from importlib.machinery import PathFinder


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in {set(EXTRAS)}
        return None if hidden else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""

COMMAND = ("-m", "accel_bridge")
PREPROCESS = ["--input", "a", "--output-prefix", "b", "--tokenizer-type", "NullTokenizer"]


@pytest.fixture
def bare(python: Python, tmp_path: Path) -> Python:
    """``python`` without any package that an extra brings."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return lambda *words: python(*words, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize(
    "words",
    [
        ["env"],
        ["backends"],
        ["plugins"],
        ["patches", "--against", "0.19.2"],
    ],
)
def test_what_looks_works(bare: Python, words: list[str]) -> None:
    done = bare(*COMMAND, *words)
    assert done.returncode == 0, done.stderr


#: Runs every command's --help, also of parity's own commands, in one process.
HELP = """
import contextlib
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.apps.cli.main import main

names = [found.item.name for found in load_plugins().commands().items]
assert {"preprocess", "inspect", "pretrain", "demo"} <= set(names), names
words = [[name] for name in names] + [["parity", word] for word in ("kernels", "record", "compare")]
for command in [[], *words]:
    try:
        status = main([*command, "--help"])
    except SystemExit as end:
        status = end.code
    assert not status, (command, status)
    print("HELPED", *command)
"""


def test_every_help_works(bare: Python) -> None:
    done = bare("-c", HELP)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert done.stdout.count("HELPED") >= 16
    assert not done.stderr


@pytest.mark.parametrize(
    ("words", "module", "extras"),
    [
        ((*COMMAND, "patches"), "torch", "megatron"),
        ((*COMMAND, "run", __file__), "torch", "megatron"),
        (("-m", "accel_bridge.run", __file__), "torch", "megatron"),
        ((*COMMAND, "pretrain", "--", "--num-layers", "2"), "torch, megatron", "megatron"),
        ((*COMMAND, "parity", "kernels"), "torch", "megatron"),
        ((*COMMAND, "demo"), "torch, megatron", "megatron,preprocess,report"),
        ((*COMMAND, "preprocess", *PREPROCESS), "numpy", "preprocess"),
        (("-m", "accel_bridge.pretrain.preprocess", *PREPROCESS), "numpy", "preprocess"),
        (("-m", "accel_bridge.pretrain.preprocess_data", *PREPROCESS), "numpy", "preprocess"),
        ((*COMMAND, "inspect", "x"), "numpy", "preprocess"),
        (("-c", "import accel_bridge.auto"), "torch", "megatron"),
        (("-m", "accel_bridge.process.launch", "--help"), "torch", "megatron"),
    ],
)
def test_what_needs_one_says_so_in_three_parts(
    bare: Python, words: tuple[str, ...], module: str, extras: str
) -> None:
    done = bare(*words)
    assert done.returncode != 0
    *_, what, evidence, following = done.stderr.splitlines()
    assert what.endswith("not installed.")
    assert f"no module {module}" in evidence
    assert f'next:     pip install ".[{extras}]"   (in your clone of accel_bridge' in following
    assert words[0] == "-c" or "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["parity", "record", "--out", "x", "--", "a"], ["parity", "compare", "x", "y"]]
)
def test_recordings_need_the_report(bare: Python, words: list[str]) -> None:
    done = bare(*COMMAND, *words)
    assert done.returncode == 2
    assert 'next:     pip install ".[report]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_users_script_keeps_its_own_error(python: Python, tmp_path: Path) -> None:
    """Not ours to explain: the script imports it, and knows where it comes from."""
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.modules['ray'] = None\nimport ray\n")
    code = f"""
from accel_bridge.process.extras import explained
import runpy
with explained():
    runpy.run_path({str(script)!r}, run_name="__main__")
"""
    done = python("-c", code)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: ")


def test_a_package_that_is_there_and_broken_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orjson", sys)
    with pytest.raises(ModuleNotFoundError), explained():
        raise ModuleNotFoundError("No module named 'orjson.part'", name="orjson.part")


def test_several_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "ray", "nltk"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage) as caught:
        require("torch", "ray", "json", "nltk")
    assert caught.value.what == "PyTorch, ray and nltk are not installed."
    assert '".[megatron,ray,sentences]"' in caught.value.next


@pytest.mark.parametrize(("version", "said"), [((3, 11), True), ((3, 12), False)])
def test_the_python_that_megatron_needs_is_named(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], said: bool
) -> None:
    monkeypatch.setattr(extras.sys, "version_info", version)
    assert ("with Python 3.12 or newer" in install("megatron")) is said
    assert "with Python" not in install("preprocess")
