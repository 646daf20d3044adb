"""MindSpeed takes an NPU over, is left alone, or is refused: with fakes of it and of Megatron.

Each case runs in a process of its own: the fakes parse sys.argv at import, as the real one does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patched_function import patched
from plugin_site import Python

from accel_bridge.errors import SelectionError
from accel_bridge.patches.mindspeed import _delegation as mindspeed
from accel_bridge.patches.mindspeed import lora
from accel_bridge.plugins.adaptors import Delegation, choose_delegation

pytestmark = pytest.mark.slow  # each case is a process that activates

#: A device with an adaptor, on the host. Its plugin is named by ACCEL_BRIDGE_PLUGINS.
BACKEND = """
from accel_bridge.plugin import Backend, Probe, hookimpl
from accel_bridge.backends.cpu._backend import CpuBackend

class Fake(CpuBackend):
    name, title, priority, adaptors = "fake", "Fake NPU", 50, ("mindspeed",)
    def probe(self):
        return Probe(True, "found", devices=8)

@hookimpl
def accel_bridge_backends():
    return [Fake()]
"""
MEGATRON = {
    "megatron/core/package_info.py": "MAJOR = {}\nMINOR = {}\nPATCH = {}\nPRE_RELEASE = ''\n",
    "megatron/core/optimizer/__init__.py": "class Adam: pass\nAdam.__module__ = 'torch.optim'\n",
    "megatron/training/__init__.py": "",
    "megatron/training/arguments.py": "def parse_args(extra_args_provider=None): return 'old'\n",
}
#: As the real one: parses sys.argv with a parser of its own, keeps sys.stderr (core_r0.16.0), and
#: wraps with functools.wraps.
ADAPTOR = """
import argparse, faulthandler, functools, signal, sys
faulthandler.register(signal.SIGUSR1, file=sys.stderr)
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--swap-attention", action="store_true")
parser.add_argument("--degree", type=int)
parser.parse_known_args()
import megatron.core.optimizer, megatron.training.arguments as arguments
class AdamW: pass
megatron.core.optimizer.Adam = AdamW
original = arguments.parse_args
@functools.wraps(original)
def parse_args(extra_args_provider=None): return "new"
arguments.parse_args = parse_args
"""
BROKEN = {
    "raises": "raise RuntimeError('no CANN')",
    "dummies": ADAPTOR.replace("arguments.parse_args = parse_args", "pass"),
    "no optimizer": ADAPTOR.replace("megatron.core.optimizer.Adam = AdamW", "pass"),
}
#: A patch of a plugin that is not accel_bridge's.
PATCH = """
from accel_bridge.patching import Kind, Patch

@hookimpl
def accel_bridge_patches(backend):
    return [Patch(
        id="plugin-patch", target="megatron.training.arguments:parse_args", kind=Kind.WRAP,
        make=lambda context: lambda extra_args_provider=None: context.original() + " and mine",
        why="w", upstream="u", removed_when="r", loses="l",
        parameters=("extra_args_provider",),
    )]
"""
CODE = """
import sys
{first}
import accel_bridge
bridge = accel_bridge.activate(after_import={late})
print("argv", sys.argv[1:])
import megatron.training.arguments as arguments
print("parse", arguments.parse_args())
print("redirected", bridge.redirection is not None)
for status in bridge.statuses:
    print(status.patch.id, status.state.value, status.reason)
"""


class World:
    """A directory with the fakes, and a process that activates among them."""

    def __init__(self, directory: Path, python: Python) -> None:
        self.directory, self.python = directory, python
        self.write("fake_npu.py", BACKEND)

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def megatron(self, version: str) -> World:
        for name, text in MEGATRON.items():
            self.write(name, text.format(*version.split(".")))
        return self

    def mindspeed(self, version: str, adaptor: str = ADAPTOR) -> World:
        self.write("setup.py", f"__version__ = '{version}'\n")
        self.write("mindspeed/__init__.py", "")
        self.write("mindspeed/megatron_adaptor.py", adaptor)
        return self

    def run(  # type: ignore[no-untyped-def]
        self,
        mode: str = "auto",
        *words: str,
        first: str = "",
        late: bool = False,
        **environ: str,
    ):
        self.write("main.py", CODE.format(first=first, late=late))
        return self.python(
            str(self.directory / "main.py"),
            *words,
            ACCEL_BRIDGE_MINDSPEED=mode,
            ACCEL_BRIDGE_PLUGINS="fake_npu",
            PYTHONPATH=str(self.directory),
            **environ,
        )


@pytest.fixture
def world(tmp_path: Path, forked: Python) -> World:
    return World(tmp_path, forked)


def test_it_takes_over_where_it_fits(tmp_path: Path, python: Python) -> None:
    """In a new interpreter, where torch is imported by the bridge."""
    world = World(tmp_path, python)
    words = ("--swap-attention", "--help", "--lr", "1")
    done = world.megatron("0.12.1").mindspeed("0.12.1").run("auto", *words)
    assert done.returncode == 0, done.stderr
    expected = "MindSpeed takes over: MindSpeed 0.12.1 is made for megatron-core 0.12.1"
    assert expected in done.stderr
    assert "parse new" in done.stdout
    assert "redirected False" in done.stdout
    assert f"argv {list(words)}" in done.stdout
    assert "arguments skipped MindSpeed has it" in done.stdout
    assert "core-attention skipped MindSpeed has it" in done.stdout


def test_megatron_adaptor_takes_over_where_mindspeed_does_not(world: World) -> None:
    """Beside TransformerEngineNPU, here a checkout before NVIDIA's wheel on the path."""
    world.megatron("0.18.1").write("megatron_adaptor/__init__.py", ADAPTOR)
    done = world.run()
    assert "own kernels: MindSpeed: it is not installed" in done.stderr
    assert (
        "MegatronAdaptor: it needs TransformerEngineNPU, and transformer_engine is" in done.stderr
    )
    world.write("transformer_engine/__init__.py", "")
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert (
        "MegatronAdaptor takes over: MegatronAdaptor is made for megatron-core 0.18" in done.stderr
    )
    assert "parse new" in done.stdout
    assert "core-attention skipped MegatronAdaptor has it" in done.stdout
    assert "takes over" not in world.run("off").stderr
    done = world.run(first="import megatron.training.arguments", late=True)
    assert "MegatronAdaptor: Megatron was imported first" in done.stderr
    world.write("megatron_adaptor/__init__.py", BROKEN["raises"])
    assert "MegatronAdaptor could not take over: it raised" in world.run().stderr
    done = world.megatron("0.16.0").run()
    assert "MegatronAdaptor is made for megatron-core 0.17, 0.18, not 0.16.0" in done.stderr


def test_patches_for_another_megatron_are_no_accident(world: World) -> None:
    """All that is kept follows the newest Megatron: not an error in strict mode, but one line."""
    world.megatron("0.12.1").mindspeed("0.12.1")
    done = world.run("require", ACCEL_BRIDGE_STRICT="1")
    assert done.returncode == 0, done.stderr
    assert "left out because they are for another Megatron: local-tokenizer-files" in done.stderr
    assert "warning: patch" not in done.stderr
    assert "local-tokenizer-files skipped it is for megatron-core" in done.stdout
    assert "MindSpeed's is 0.12.1" in done.stdout


def test_a_script_may_import_it_first(world: World) -> None:
    """Then it has changed Megatron already; one that came too late itself is found."""
    world.megatron("0.12.1").mindspeed("0.12.1")
    done = world.run(first="import mindspeed.megatron_adaptor")
    assert "parse new" in done.stdout, done.stderr
    assert "MindSpeed takes over" in done.stderr
    assert "and was imported first" in done.stderr
    world.mindspeed("0.12.1", BROKEN["dummies"])
    done = world.run(first="import mindspeed.megatron_adaptor")
    assert "Megatron kept its own functions" in done.stderr


def test_a_patch_of_another_plugin_stays(world: World) -> None:
    world.write("fake_npu.py", BACKEND + PATCH)
    done = world.megatron("0.12.1").mindspeed("0.12.1").run("require")
    assert "parse new and mine" in done.stdout, done.stderr
    assert "plugin-patch skipped" not in done.stdout


def test_neither_mindspeed_nor_own_patches(world: World) -> None:
    """The error of a Megatron without patches says why MindSpeed did not take it."""
    done = world.megatron("0.11.0").run("auto")
    assert done.returncode == 1
    error = done.stderr.partition("VersionError")[2]
    for word in (
        "megatron-core 0.11.0 has never been tested",
        "MindSpeed: it is not installed",
        "for MindSpeed: install MindSpeed",
    ):
        assert word in error


def test_a_megatron_that_was_imported_first_keeps_own_patches(world: World) -> None:
    world.megatron("0.12.1").mindspeed("0.12.1")
    done = world.run("auto", first="import megatron.training.arguments", late=True)
    assert "own kernels: MindSpeed: Megatron was imported first" in done.stderr


@pytest.mark.parametrize(
    ("megatron", "version", "why"),
    [
        ("0.12.1", None, "it is not installed"),
        ("0.16.0", "0.12.1", "MindSpeed 0.12.1 is made for megatron-core 0.12, not 0.16.0"),
        ("0.12.1", "7.5", "is not one of the supported releases"),
    ],
)
def test_it_is_required_and_does_not_fit(
    world: World, megatron: str, version: str | None, why: str
) -> None:
    world.megatron(megatron)
    if version is not None:
        world.mindspeed(version, "raise SystemExit('must not be imported')")
    done = world.run("require")
    assert done.returncode == 1
    for word in ("MindSpeed was required", why, "evidence:", "next:", "ACCEL_BRIDGE_MINDSPEED"):
        assert word in done.stderr


def test_own_kernels_for_a_newer_megatron(world: World) -> None:
    """The usual case: the Megatron of this repository, and an older MindSpeed."""
    done = world.mindspeed("0.12.1", "raise SystemExit('must not be imported')").run("auto")
    assert "own kernels: MindSpeed: MindSpeed 0.12.1 is made for megatron-core 0.12" in done.stderr
    assert "redirected True" in done.stdout
    assert "MindSpeed has it" not in done.stdout


@pytest.mark.parametrize(
    ("adaptor", "word"),
    [
        ("raises", "it raised RuntimeError"),
        ("dummies", "unchanged: megatron.training.arguments:parse_args"),
        ("no optimizer", "unchanged: megatron.core.optimizer:Adam"),
    ],
)
def test_a_delegation_that_fails_stops(world: World, adaptor: str, word: str) -> None:
    done = world.megatron("0.12.1").mindspeed("0.12.1", BROKEN[adaptor]).run("auto")
    assert done.returncode == 1
    assert "MindSpeed could not take over" in done.stderr
    assert word in done.stderr
    assert "ACCEL_BRIDGE_MINDSPEED=off" in done.stderr


def test_a_bad_value_of_its_own_flag_says_so(world: World) -> None:
    done = world.megatron("0.12.1").mindspeed("0.12.1").run("auto", "--degree", "many")
    assert "it ended the program with status 2" in done.stderr
    assert "evidence: argument --degree: invalid int value: 'many'" in done.stderr


def test_a_backend_without_adaptors(forked: Python) -> None:
    done = forked(
        "-c",
        "import accel_bridge; accel_bridge.activate('cpu')",
        ACCEL_BRIDGE_MINDSPEED="require",
    )
    assert "backend cpu" in done.stderr
    assert "unset ACCEL_BRIDGE_MINDSPEED" in done.stderr


def test_the_first_that_is_taken_is_chosen_unless_one_is_required() -> None:
    no, yes, last = (Delegation(adaptor="a", taken=taken, why="w") for taken in (False, True, True))
    assert choose_delegation([no, yes, last], "x") is yes
    assert choose_delegation([no], "x") is None
    wanted = replace(last, required="A=require")
    assert choose_delegation([no, yes, wanted], "x") is wanted
    with pytest.raises(SelectionError, match="a was required"):
        choose_delegation([yes, replace(no, required="A=require")], "x")


def test_every_kept_patch_exists() -> None:
    from accel_bridge.backends.cpu import CpuBackend
    from accel_bridge.patches.plugin import accel_bridge_patches

    ids = {patch.id for patch in accel_bridge_patches(CpuBackend())}
    assert set() == mindspeed.KEPT - ids


def test_a_framework_that_has_no_arguments_of_megatrons_builds_its_model() -> None:
    """Models are also built where megatron.training has parsed nothing."""

    def upstream(pre_wrap_hook: Any = None) -> Any:
        return pre_wrap_hook

    build = patched(lora.PATCHES, upstream, "lora-builder")
    assert build(pre_wrap_hook="the caller's own") == "the caller's own"
