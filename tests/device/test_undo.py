"""Undo gives torch its own objects back, all of them."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
import torch.distributed.device_mesh
import torch.nn.attention.flex_attention
import torch.nn.parallel
import torch.utils.data
from torch.jit import _builtins as script_builtins

from accel_bridge.device import DeviceRedirection
from accel_bridge.device.backend import DeviceSpec
from accel_bridge.process.journal import own_namespace

CLASSES: tuple[type, ...] = (
    torch.Tensor,
    torch.nn.Module,
    torch.autocast,
    torch.amp.GradScaler,
    torch.autograd.profiler.profile,
    torch.distributed.device_mesh.DeviceMesh,
    torch.nn.parallel.DistributedDataParallel,
    torch.storage._StorageBase,
    torch.utils._device.DeviceContext,
    torch.utils.data.DataLoader,
    torch.utils.data.dataloader._BaseDataLoaderIter,
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
)


def snapshot() -> dict[Any, dict[str, Any]]:
    """Raw namespaces of every loaded torch module and of the classes above."""
    script_builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    owners: list[Any] = [
        module
        for name, module in sys.modules.items()
        if isinstance(module, types.ModuleType) and (name == "torch" or name.startswith("torch."))
    ]
    namespaces = {id(owner): dict(own_namespace(owner)) for owner in owners}
    namespaces |= {owner: dict(vars(owner)) for owner in CLASSES}
    namespaces["script"] = {str(k): v for k, v in script_builtins._builtin_table.items()}
    return namespaces


def differences(before: dict[Any, dict[str, Any]], after: dict[Any, dict[str, Any]]) -> list[str]:
    missing = object()
    return [
        f"{before[owner].get('__name__', owner)}.{name}"
        for owner in before
        for name in before[owner].keys() | after[owner].keys()
        if before[owner].get(name, missing) is not after[owner].get(name, missing)
    ]


@pytest.fixture(params=["cpu_spec", "meta_spec"])
def spec(request: pytest.FixtureRequest) -> DeviceSpec:
    result: DeviceSpec = request.getfixturevalue(request.param)
    return result


def test_undo_is_exact(spec: DeviceSpec) -> None:
    redirection = DeviceRedirection(spec)
    before = snapshot()
    redirection.undo()
    for _ in range(2):
        redirection.apply()
        assert redirection.applied
        changes = redirection.changes
        assert len(changes) > 200
        redirection.apply()
        assert redirection.changes == changes
        # The comparison sees the changes: it is able to fail.
        assert len(differences(before, snapshot())) > 200
        redirection.undo()
        redirection.undo()
        assert differences(before, snapshot()) == []
        assert not redirection.applied
        assert redirection.changes == ()


def test_a_failure_leaves_torch_as_it_was(
    cpu_spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accel_bridge.device import _redirection

    def fail(context: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_redirection, "_PARTS", (*_redirection._PARTS, fail))
    before = snapshot()
    redirection = DeviceRedirection(cpu_spec)
    with pytest.raises(ZeroDivisionError):
        redirection.apply()
    assert not redirection.applied
    assert differences(before, snapshot()) == []


def test_copies_that_modules_took_are_undone(
    cpu_spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = types.ModuleType("script_of_a_user")
    monkeypatch.setitem(sys.modules, script.__name__, script)
    originals = (torch.cuda.Stream, torch.cuda._lazy_call, torch.zeros)
    with DeviceRedirection(cpu_spec):
        exec(
            "from torch.cuda import Stream as S, _lazy_call\nfrom torch import zeros",
            script.__dict__,
        )
        assert script.zeros is not originals[2]
    assert (script.S, script._lazy_call, script.zeros) == originals
