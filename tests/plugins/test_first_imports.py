"""What a script for Ascend imports first of all, by every way in which the bridge gets there.

The real ways run on the CPU backend; an NPU is a backend for which nothing is absent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge.plugins.adaptors import Adaptor, AdaptorFinder
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process.bootstrap import accel_bridge_hook as hook
from accel_bridge.process.bootstrap import accel_bridge_start as start

#: As documents and scripts write them.
LINES = {
    "torch_npu": "import torch_npu",
    "transfer_to_npu": "from torch_npu.contrib import transfer_to_npu",
    "mindspeed": "import mindspeed.megatron_adaptor",
    "mindspeed_llm": "from mindspeed_llm import megatron_adaptor",
    "megatron_adaptor": "import megatron_adaptor",
}
USE = "import torch\nprint(torch.ones(1, device='cuda').device)\n"

#: Arguments of Python, and environment variables; SCRIPT is the script's path, MODULE its name.
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "run": (["-m", "accel_bridge", "run", "SCRIPT"], {}),
    "AUTO -m": (["-m", "MODULE"], {"ACCEL_BRIDGE_AUTO": "1"}),
    "auto": (["-c", "import accel_bridge.auto, runpy; runpy.run_path('SCRIPT')"], {}),
    "a child": (
        ["-m", "accel_bridge", "run", "--", "bash", "-c", f"{sys.executable} SCRIPT; exit $?"],
        {},
    ),
    "spawn": (["SPAWN"], {"ACCEL_BRIDGE_AUTO": "1"}),
}
SPAWN = """
import multiprocessing, runpy
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=runpy.run_path, args=("SCRIPT",))
    child.start()
    child.join()
"""


#: Every way with one of the names.
CASES = list(zip(LINES, WAYS, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), CASES)
def test_it_is_the_first_import(name: str, way: str, python: Python, tmp_path: Path) -> None:
    script, spawn = tmp_path / "first_imports_script.py", tmp_path / "spawn.py"
    script.write_text(f"{LINES[name]}\n{USE}")
    spawn.write_text(SPAWN.replace("SCRIPT", str(script)))
    words, environ = WAYS[way]
    values = {"SCRIPT": str(script), "MODULE": script.stem, "SPAWN": str(spawn)}
    for key, value in values.items():
        words = [word.replace(key, value) for word in words]
    path = {"PYTHONPATH": str(tmp_path), "ACCEL_BRIDGE_BACKEND": "cpu"}
    done = python(*words, **environ, **path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["cpu"], done.stderr
    assert done.stderr.count(f"`import {LINES[name].split()[1].split('.')[0]}` does nothing") == 1


@pytest.mark.slow
def test_a_list_of_installed_packages_has_the_shims(python: Python, tmp_path: Path) -> None:
    """transformers keeps it from its own import on, and looks a module up that it can find."""
    (tmp_path / "transformers.py").write_text(
        "import importlib.metadata\nkept = importlib.metadata.packages_distributions()\n"
    )
    script = tmp_path / "first_imports_script.py"
    script.write_text("import transformers, torch\nprint(transformers.kept['flash_attn'])\n")
    path = {"PYTHONPATH": str(tmp_path), "ACCEL_BRIDGE_BACKEND": "cpu"}
    done = python("-m", "accel_bridge", "run", "--", sys.executable, str(script), **path)
    assert done.stdout.splitlines()[-1:] == ["['flash-attn']"], done.stderr


def test_the_hook_waits_for_every_adaptor() -> None:
    plugins = load_plugins()
    found = [one for backend in plugins.backends() for one in plugins.adaptors(backend.item).items]
    assert {one.item.name for one in found} < hook.NAMES


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The hook waits for `zebra`, which is nowhere; its activation brings the adaptors."""
    empty = tmp_path / "empty"
    (empty / "zebra").mkdir(parents=True)
    (empty / "zebra/__init__.py").write_text("")
    (empty / "zebra/stripes.py").write_text("painted = True\n")
    finder = AdaptorFinder([Adaptor("zebra", empty, "it runs on savannas only")], lambda _: None)
    waits = hook.Hook()
    monkeypatch.setattr(hook, "NAMES", frozenset({"zebra"}))
    monkeypatch.setattr(hook, "_hook", waits)
    monkeypatch.setattr(hook, "_activate", lambda name: finder.install())
    monkeypatch.syspath_prepend(tmp_path)
    sys.meta_path.insert(0, waits)
    yield tmp_path
    finder.remove()
    sys.meta_path[:] = [one for one in sys.meta_path if one is not waits]
    for name in [name for name in sys.modules if name.partition(".")[0] == "zebra"]:
        del sys.modules[name]


STATEMENTS = {
    "import": "import zebra\nfound = zebra",
    "a module of it": "import zebra.stripes\nfound = zebra.stripes",
    "from": "from zebra.stripes import painted as found",
    "import_module": "import importlib\nfound = importlib.import_module('zebra.stripes')",
    "__import__": "found = __import__('zebra')",
    "exec": "exec('import zebra')\nfound = zebra",
    "later": "import json\nimport zebra\nfound = zebra",
}
QUESTIONS = {
    "find_spec": "import importlib.util\nfound = importlib.util.find_spec('zebra')",
    "try": "try:\n    import zebra as found\nexcept ImportError:\n    found = None",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_hook_hands_the_import_on(directory: Path, name: str) -> None:
    values: dict[str, object] = {}
    exec(compile(STATEMENTS[name], str(directory / "script.py"), "exec"), values)
    assert values["found"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_hook_hands_a_question_on(directory: Path, name: str) -> None:
    script = directory / "question_for_zebra.py"
    script.write_text(QUESTIONS[name])
    values: dict[str, object] = {}
    exec(compile(QUESTIONS[name], str(script), "exec"), values)
    assert values["found"] is None


def test_the_hook_finds_a_real_one_on_an_npu(directory: Path) -> None:
    """There no adaptor is absent, and the real package is what the import gets."""
    (directory / "zebra").mkdir()
    (directory / "zebra/__init__.py").write_text("real = True")
    hook._activate = lambda name: None  # the fixture puts it back
    values: dict[str, object] = {}
    exec("import zebra", values)
    assert vars(values["zebra"])["real"]


WITHOUT_THE_BRIDGE = """
import importlib.util
assert importlib.util.find_spec("transformer_engine") is None
try:
    import transformer_engine.pytorch
except ImportError:
    pass
import accel_bridge.auto
import transformer_engine.pytorch
print(transformer_engine.pytorch.Linear.__name__)
"""


@pytest.mark.slow
def test_a_program_without_the_bridge_finds_no_empty_transformer_engine(python: Python) -> None:
    """Peft imports what it finds, without a `try`."""
    done = python("-c", WITHOUT_THE_BRIDGE, ACCEL_BRIDGE_BACKEND="cpu")
    assert done.stdout.splitlines()[-1:] == ["Linear"], done.stderr


@pytest.mark.parametrize(
    ("names", "empty"),
    [
        (["transformer_engine", "transformer_engine-2.20.2.dist-info"], True),
        (["transformer_engine", "transformer_engine_cu12"], False),
        (["transformer_engine", "transformer_engine_torch.cpython-312-x86_64.so"], False),
        (["torch"], False),
    ],
)
def test_an_empty_transformer_engine(names: list[str], empty: bool, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert start.is_empty(str(tmp_path)) is empty
    assert not start.is_empty(str(tmp_path / "transformer_engine"))
