"""Rotary embedding by the kernel and by NVIDIA's Python."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from accel_bridge.kernels import ROTARY
from accel_bridge.libraries.transformer_engine_torch import rope


@pytest.mark.parametrize("interleaved", [False, True])
def test_packed(te: ModuleType, interleaved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches the kernel has the contract's four dimensions; each sequence begins at 0."""
    from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb

    shapes = []

    def rotary(input: torch.Tensor, cos: Any, sin: Any, *, interleaved: bool = False) -> Any:
        shapes.append((input.dim(), cos.dim()))
        return ROTARY.reference(input, cos, sin, interleaved=interleaved)

    ends = torch.tensor([0, 5, 6, 13], dtype=torch.int32, device="cuda")
    x = torch.randn(13, 3, 8, device="cuda", requires_grad=True)
    freqs = torch.randn(16, 1, 1, 8, device="cuda")
    monkeypatch.setattr(rope, "kernel", lambda contract: ROTARY.kernel(rotary, "counts"))
    found = apply_rotary_pos_emb(
        x, freqs, tensor_format="thd", interleaved=interleaved, fused=True, cu_seqlens=ends
    )
    found.sum().backward()
    assert shapes == [(4, 4), (4, 4)]
    starts = ends.tolist()
    parts = [
        apply_rotary_pos_emb(
            x[start:end, None], freqs, tensor_format="sbhd", interleaved=interleaved, fused=False
        ).squeeze(1)
        for start, end in pairwise(starts)
    ]
    torch.testing.assert_close(found, torch.cat(parts))
