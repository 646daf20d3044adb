"""What scripts for other devices import first of all, and who gets an empty module for it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge.plugins.adaptors import AbsentAdaptorError, Adaptor, AdaptorFinder
from accel_bridge.plugins.manager import load_plugins


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def finder(tmp_path: Path, said: list[str]) -> Iterator[AdaptorFinder]:
    directory = tmp_path / "shims"
    (directory / "zebra").mkdir(parents=True)
    (directory / "zebra/__init__.py").write_text("")
    (directory / "zebra/stripes.py").write_text("def repaint(): pass\n")
    made = AdaptorFinder([Adaptor("zebra", directory, "it runs on savannas only")], said.append)
    made.install()
    yield made
    made.remove()


@pytest.fixture
def run(tmp_path: Path, site: object) -> Callable[[str], object]:
    """Imports a module with the source that it is given."""

    def import_source(source: str) -> object:
        name = f"herd_{abs(hash(source))}"
        (tmp_path / f"{name}.py").write_text(source)
        return import_module(name)

    return import_source


Run = Callable[[str], object]


UNGUARDED = {
    "plain": "import zebra.stripes",
    "from": "from zebra import stripes\nfrom zebra.stripes import repaint",
    "a try that raises": "try:\n    import zebra\nexcept Exception:\n    raise",
    "a try about something else": "try:\n    import zebra\nexcept KeyError:\n    pass",
    "after a try": "try:\n    pass\nexcept ImportError:\n    pass\nimport zebra",
    "in the handler": "try:\n    import nowhere\nexcept ImportError:\n    import zebra",
    "a finally": "try:\n    import zebra\nfinally:\n    pass",
    "another suppress": "import contextlib\nwith contextlib.suppress(KeyError):\n    import zebra",
    "import_module": "from importlib import import_module\nimport_module('zebra.stripes')",
}
GUARDED = {
    "try": "try:\n    import zebra\nexcept ImportError:\n    pass",
    "try of several": "try:\n    import zebra\nexcept (KeyError, ModuleNotFoundError):\n    pass",
    "try of all": "try:\n    from zebra import stripes\nexcept:\n    pass",
    "try with a tail": "try:\n    import zebra\nexcept Exception:\n    zebra = None\nelse:\n    1",
    "suppress": "from contextlib import suppress\nwith suppress(ImportError):\n    import zebra",
    "a caller's try": "def f():\n    import zebra\ntry:\n    f()\nexcept ImportError:\n    pass",
    "a look": "from importlib.util import find_spec\nassert find_spec('zebra') is None",
}


@pytest.mark.parametrize("name", UNGUARDED)
def test_who_cannot_do_without_gets_an_empty_module(
    name: str, finder: AdaptorFinder, run: Run, said: list[str]
) -> None:
    ast.parse(UNGUARDED[name])
    run(UNGUARDED[name])
    assert len(said) == 1
    assert "`import zebra` does nothing: it runs on savannas only" in said[0]
    finder.remove()
    assert not any(module.partition(".")[0] == "zebra" for module in sys.modules)


@pytest.mark.parametrize("name", GUARDED)
def test_who_asks_gets_the_answer_that_there_was(
    name: str, finder: AdaptorFinder, run: Run, said: list[str]
) -> None:
    run(GUARDED[name])
    assert said == []
    assert "zebra" not in sys.modules


def test_what_only_the_real_one_has_is_named(finder: AdaptorFinder, run: Run) -> None:
    with pytest.raises(AbsentAdaptorError, match=r"no zebra\.mane here\n  evidence: .*\n  next:"):
        run("import zebra\nimport zebra.mane")


SCRIPT = """
{first}
import torch_npu
from torch_npu.contrib import transfer_to_npu
import mindspeed.megatron_adaptor
from mindspeed.megatron_adaptor import repatch
from mindspeed_llm import megatron_adaptor
import megatron_adaptor
import apex
{last}
import torch
repatch({{}})
print(torch.ones(1, device="cuda").device, torch.npu.is_available(), torch.npu.device_count())
try:
    torch_npu.npu_rms_norm
except AttributeError as error:
    print(str(error).splitlines()[0])
accel_bridge.deactivate()
print(hasattr(torch, "npu"))
"""


@pytest.mark.slow
def test_the_first_lines_of_scripts_for_ascend(python: Python, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(first="import accel_bridge.auto", last=""))
    done = python(str(script), ACCEL_BRIDGE_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
    shown = ["cpu False 0", "torch_npu.npu_rms_norm needs an Ascend NPU", "False"]
    assert done.stdout.splitlines() == shown
    assert done.stderr.count("does nothing") == 4


def test_every_backend_but_ascend_has_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_MINDSPEED", "auto")
    plugins = load_plugins()
    names = {"mindspeed", "mindspeed_llm", "megatron_adaptor"}
    for found in plugins.backends():
        adaptors = plugins.adaptors(found.item).items
        served = {one.item.name for one in adaptors}
        assert served == names | ({"torch_npu"} if found.item.name != "ascend" else set())
        for one in adaptors:
            assert (one.item.directory / one.item.name / "__init__.py").is_file()
