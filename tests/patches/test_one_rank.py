"""What one rank answers on the host is what upstream would read back from the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patched_function import patched

from accel_bridge.patches.one_rank import PATCHES

pytestmark = pytest.mark.megatron
NAMES = {
    "one-rank-any": "megatron.core.rerun_state_machine:RerunStateMachine._reduce_any",
    "one-rank-all": "megatron.training.utils:logical_and_across_model_parallel_group",
    "one-rank-largest": "megatron.training.utils:reduce_max_stat_across_model_parallel_group",
}
GIVEN = [
    *[("one-rank-any", value) for value in (True, False, [True, False], [False], [])],
    *[("one-rank-all", value) for value in (True, False, 1, torch.tensor(True))],
    *[("one-rank-largest", value) for value in (None, -1.0, 0.1, 7, torch.tensor(2.5))],
]


class Reductions(list[int]):
    """Groups of so many ranks, and what was reduced over them: every rank says the same."""

    def __init__(self, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        group, parallel = SimpleNamespace(size=lambda: ranks), "megatron.core.parallel_state"
        monkeypatch.setattr(f"{parallel}.get_model_parallel_group", lambda: group)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
        monkeypatch.setattr(torch.distributed, "all_reduce", self._reduce)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
        real = torch.tensor
        monkeypatch.setattr(torch, "tensor", lambda x, **given: real(x, **given | {"device": None}))

    def _reduce(self, tensor: torch.Tensor, **_: Any) -> None:
        self.append(tensor.numel())


def upstream(id: str) -> Any:
    module, _, name = NAMES[id].partition(":")
    found = pytest.importorskip(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("id", "value"), GIVEN)
def test_one_rank(id: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(upstream(id), "__wrapped__", upstream(id))
    reduced = Reductions(1, monkeypatch)
    given = (None, value) if id == "one-rank-any" else (value,)
    wanted = function(*given)
    assert len(reduced) == 1
    found = patched(PATCHES, function, id)(*given)
    assert (found, type(found)) == (wanted, type(wanted))
    assert len(reduced) == 1


@pytest.mark.parametrize("id", NAMES)
def test_several_ranks_ask_each_other(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(upstream(id), "__wrapped__", upstream(id))
    reduced = Reductions(2, monkeypatch)
    patched(PATCHES, function, id)(*((None, True) if id == "one-rank-any" else (True,)))
    assert len(reduced) == 1
