"""Entries in upstream's tables of operator backends, made from kernel contracts."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import CONTRACTS, CROSS_ENTROPY
from accel_bridge.patches import operator_backends
from accel_bridge.patches.operator_backends import FAMILIES, NAME, PATCHES, determinism
from accel_bridge.patching import Fit, against_version


def context(family: str, monkeypatch: pytest.MonkeyPatch, shimmed: bool = True) -> Any:
    """What the patch of a family gets, with upstream's own backend standing in."""
    parent = FAMILIES[family].parent
    backends = ModuleType(f"ops_of_{family}.backends")
    setattr(backends, parent, type(parent, (), {"DETERMINISM": "nondeterministic"}))
    monkeypatch.setitem(sys.modules, backends.__name__, backends)
    host = SimpleNamespace(
        kernels=KERNELS, kernel=lambda contract: KERNELS[contract], is_shimmed=lambda name: shimmed
    )
    original = {"local": object, "transformer_engine": object}
    return SimpleNamespace(
        module=ModuleType(f"ops_of_{family}"), original=original, host=host, patch=None
    )


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.id)
def test_a_table_gets_one_entry_that_says_what_it_is(
    patch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = patch.id.removeprefix("operators-")
    given = context(name, monkeypatch)
    table = patch.make(given)
    assert set(table) == {"local", "transformer_engine", NAME}
    assert set(given.original) == {"local", "transformer_engine"}  # undone by putting it back
    entry = table[NAME]
    assert entry.__bases__[0].__name__ == FAMILIES[name].parent
    assert entry.DETERMINISM in {"deterministic", "nondeterministic", "unknown"}
    assert FAMILIES[name].requires == entry.REQUIRES
    for slot, _ in FAMILIES[name].slots:
        assert callable(getattr(entry(), slot))


def test_every_contract_exists() -> None:
    assert {name for family in FAMILIES.values() for name in family.kernels} <= set(CONTRACTS)


def test_only_pytorchs_own_operators_are_called_deterministic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = FAMILIES["loss"]
    host = context("loss", monkeypatch).host
    assert determinism(loss, host) == "deterministic"
    faster = SimpleNamespace(contract=CROSS_ENTROPY, is_reference=False, source="ours, in Triton")
    host.kernels = (faster,)
    assert determinism(loss, host) == "unknown"
    # NVIDIA's compiled extension computes, whatever the backend's kernels are.
    assert determinism(FAMILIES["norm"], context("norm", monkeypatch, shimmed=False).host) == (
        "unknown"
    )


@pytest.mark.megatron
def test_the_loss_is_the_active_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    given = context("loss", monkeypatch)
    made = next(patch for patch in PATCHES if patch.id == "operators-loss").make(given)
    loss = made[NAME]().vocab_parallel_cross_entropy()
    monkeypatch.setattr(
        "megatron.core.parallel_state.get_tensor_model_parallel_group", lambda: None
    )
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 2, 5, dtype=torch.float64), torch.randint(5, (3, 2))
    wanted = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none"
    )
    torch.testing.assert_close(loss(logits.clone(), labels).flatten().double(), wanted)


def test_versions_without_the_tables_need_no_entry() -> None:
    assert {verdict.fit for verdict in against_version(PATCHES, "0.19.2")} == {Fit.NEEDLESS}
    assert {verdict.fit for verdict in against_version(PATCHES, "#6690")} == {Fit.OK}
    assert operator_backends.PATCHES[0].elsewhere
