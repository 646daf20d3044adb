"""Every latent attention gets a key projection whose gradient is that of all ranks."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches.latent_gradients import PATCHES
from accel_bridge.patching import Argument


class Attention(torch.nn.Module):
    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(tensor_model_parallel_size=ranks)
        self.linear_kv_down_proj = torch.nn.Identity()


@pytest.mark.parametrize("name", ["MLASelfAttention", "AbsorbedMLASelfAttention"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_its_projection_is_followed(monkeypatch: pytest.MonkeyPatch, name: str, ranks: int) -> None:
    (patch,) = [one for one in PATCHES if one.target.endswith(f":{name}.__init__")]
    upstream = Attention.__init__
    signature = inspect.signature(upstream)
    context: Any = SimpleNamespace(
        original=upstream, argument=lambda name: Argument.find(signature, name)
    )
    made: Any = patch.make(context)
    monkeypatch.setattr(Attention, "__init__", made)
    assert len(Attention(ranks).linear_kv_down_proj._forward_hooks) == ranks - 1
