"""What others ask of the libraries: names and gates are served, or their absence is reviewed."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from accel_bridge.libraries import LIBRARIES

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import library_facts as facts
import library_page as page


def claimed(library: Any) -> str:
    """The version whose interface is served: the shim's, or that of the library's own Python."""
    return str(library.version or version(library.distribution))


#: name -> why it cannot be imported, found by importing each in a process of its own.
lacking = page.missing


@pytest.mark.slow
def test_every_absent_name_is_reviewed() -> None:
    """A name without a reason is a shim's bug; a reason without an absent name is stale."""
    reasons = page.absences()
    wanted = [*page.asked(), *page.arguments(page.gates())]
    unreviewed = {
        name: why
        for name, why in lacking().items()
        if not any(one.covers(name) and not one.imports for one in reasons)
    }
    assert unreviewed == {}
    stale = [
        one.names
        for one in reasons
        if not any(one.covers(name) and (name not in lacking()) == one.imports for name in wanted)
    ]
    assert stale == []


def test_a_wildcard_of_absent_names_says_nothing_about_one_that_is_there() -> None:
    absent = page.Absence("lib.ops.Scaled*", "came later")
    refused = page.Absence("lib.recipe", "needs another GPU", imports=True)
    lacking = {"lib.ops.ScaledSReLU": "ScaledSReLU"}
    states = [
        page.state_of(name, lacking, [absent, refused])
        for name in ("lib.ops.ScaledSReLU", "lib.ops.ScaledSwiGLU", "lib.recipe", "lib.other")
    ]
    assert states == [
        ("absent", "came later"),
        ("served", ""),
        ("refused", "needs another GPU"),
        ("served", ""),
    ]


@pytest.mark.slow
def test_every_gate_at_or_below_the_claimed_version_is_honoured() -> None:
    reasons = [one for one in page.absences() if not one.imports]
    checked = 0
    for gate in page.gates():
        if Version(gate["version"]) > Version(claimed(LIBRARIES[gate["library"]])):
            continue
        for name in (*gate.get("names", ()), *page.arguments([gate])):
            checked += 1
            assert name not in lacking() or any(one.covers(name) for one in reasons), gate
    assert checked > 50


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES.values(), ids=lambda one: one.name)
def test_the_claimed_version_is_the_newest_that_can_be_honoured(library: Any) -> None:
    """The next gate above it asks for something that the shim does not have."""
    version_claimed = Version(claimed(library))
    above = [
        gate
        for gate in page.gates()
        if gate["library"] == library.name and Version(gate["version"]) > version_claimed
    ]
    if above:
        lowest = min(Version(gate["version"]) for gate in above)
        asked = [
            name
            for gate in above
            if Version(gate["version"]) == lowest
            for name in (*gate.get("names", ()), *page.arguments([gate]))
        ]
        assert [name for name in asked if name in lacking()]


def test_every_library_is_looked_for() -> None:
    roots = {root for library in LIBRARIES.values() for root in library.roots}
    assert roots <= set(facts.ROOTS)


SOURCE = """
import transformer_engine as te
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager as Manager
import torch

class Mine(te.pytorch.Linear):
    def __init__(self, **extra_kwargs):
        minimum = "1.5"
        if HAVE_TE and is_te_min_version(minimum):
            extra_kwargs["odd"] = Manager.get_fp8_group()
            te.pytorch.ops.Sequential
        if not is_te_min_version("2.0"):
            raise ValueError("needs two")
        assert get_te_version() >= PkgVersion("2.3"), f"no {torch.x} here"

def late():
    find("transformer_engine.pytorch.module.linear", "transformer_engine is a name")
"""


def test_names_and_gates_are_found(tmp_path: Path) -> None:
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron/one.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text("import apex")  # not Megatron's
    names, gates = facts.read_tree(tmp_path, with_gates=True)
    te = "transformer_engine.pytorch"
    assert names == {
        "transformer_engine",
        f"{te}.Linear",
        f"{te}.fp8.FP8GlobalStateManager",
        f"{te}.fp8.FP8GlobalStateManager.get_fp8_group",
        f"{te}.ops.Sequential",
        f"{te}.module.linear",
    }
    assert [(gate.version, gate.where) for gate in gates] == [
        (version, "megatron/one.py:Mine.__init__") for version in ("1.5", "2.0", "2.3")
    ]
    first = gates[0]
    assert set(first.names) == {f"{te}.fp8.FP8GlobalStateManager.get_fp8_group"} | {
        f"{te}.ops.Sequential"
    }
    assert (first.keywords, first.classes) == (("odd",), (f"{te}.Linear",))
