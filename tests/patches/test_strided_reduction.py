"""A sum over ranks reaches whoever gets a tensor that is not contiguous."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch

from accel_bridge.patches.tensor_parallel import PATCHES
from accel_bridge.patching import Argument


def reduce(input_: torch.Tensor, group: object) -> torch.Tensor:
    """What Megatron before 0.19 does, for two ranks with equal tensors."""
    input_.contiguous().mul_(2)
    return input_


def test_a_view_is_summed_and_returned() -> None:
    (patch,) = (one for one in PATCHES if one.id == "strided-reduction")
    signature = inspect.signature(reduce)
    context: Any = SimpleNamespace(
        original=reduce, argument=lambda name: Argument.find(signature, name)
    )
    patched = patch.make(context)
    view = torch.ones(4, 6)[:, 2:]
    assert torch.equal(reduce(view, None), torch.ones(4, 4)), "upstream is as the patch takes it"
    assert torch.equal(patched(view, None), torch.full((4, 4), 2.0))
    assert torch.equal(patched(input_=view, group=None), torch.full((4, 4), 2.0))
    whole = torch.ones(3)
    assert patched(whole, None) is whole
    assert torch.equal(whole, torch.full((3,), 2.0))
