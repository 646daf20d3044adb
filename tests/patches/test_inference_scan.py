"""Inference of hybrid models: scans and steps equal a loop over the tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from torch.nn import functional

from accel_bridge.patches.inference_scan import PATCHES
from accel_bridge.patching import PatchContext
from accel_bridge.patching.host import Host

H, P, N = 4, 8, 16


class Reference:
    """A host whose kernels are the contracts' references."""

    def kernel(self, contract: Any) -> Any:
        return contract.reference


def patched(id: str, upstream: Callable[..., Any]) -> Any:
    (patch,) = (one for one in PATCHES if one.id == id)
    declared = inspect.signature(upstream)
    host = cast(Host, Reference())
    return patch.make(PatchContext(upstream, cast(ModuleType, None), None, host, patch, declared))


def scan_of_019(
    x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: Any, cu_chunk_seqlens: Any,
    last_chunk_indices: Any, seq_idx: Any, out: Any, D: Any = None, z: Any = None,
    dt_bias: Any = None, initial_states: Any = None, dt_softplus: Any = False,
    dt_limit: Any = (0.0, float("inf")), return_raw_states: Any = False, state_dtype: Any = None,
) -> None:  # fmt: skip
    """Upstream's signature."""


def test_the_scan_of_packed_prompts_equals_a_loop_over_tokens() -> None:
    torch.manual_seed(0)
    # Three requests of 5, 0 and 7 tokens in chunks of 4, and padding behind them.
    bounds, owners, last = [0, 4, 5, 5, 9, 12, 12], [0, 0, 1, 2, 2, 2], [1, 2, 4]
    x, z = torch.randn(2, 14, H, P, dtype=torch.float64)
    write, read = torch.randn(2, 14, 2, N, dtype=torch.float64)
    dt, bias = torch.randn(14, H, dtype=torch.float64), torch.randn(H, dtype=torch.float64)
    decay, skip = -torch.rand(H, dtype=torch.float64), torch.randn(H, dtype=torch.float64)
    first = torch.randn(3, H, P, N, dtype=torch.float64)
    out = torch.zeros_like(x)
    scan = patched("inference-scan", scan_of_019)
    found, raw = scan(
        x, dt, decay, write, read, 4, torch.tensor(bounds), torch.tensor(last),
        torch.tensor(owners), out, D=skip, z=z, dt_bias=bias, initial_states=first,
        dt_softplus=True, return_raw_states=True, state_dtype=torch.float64,
    )  # fmt: skip
    expected, states = torch.zeros_like(x), first.clone()
    after = {}
    for chunk, owner in enumerate(owners):
        for t in range(bounds[chunk], bounds[chunk + 1]):
            step = functional.softplus(dt[t] + bias)
            wide = [one[t].repeat_interleave(H // 2, 0) for one in (write, read)]
            grown = (step[:, None] * x[t])[..., None] * wide[0][:, None]
            states[owner] = states[owner] * (step * decay).exp()[:, None, None] + grown
            y = (states[owner] * wide[1][:, None]).sum(-1) + skip[:, None] * x[t]
            expected[t] = y * functional.silu(z[t])
        after[chunk] = states[owner].clone()
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found, states)
    torch.testing.assert_close(raw, torch.stack([after[chunk] for chunk in range(6)]))


def step_of_019(
    state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None,
    dt_bias: Any = None, dt_softplus: Any = False, state_batch_indices: Any = None,
    intermediate_ssm_states: Any = None,
) -> None:  # fmt: skip
    """Upstream's signature."""


def test_several_positions_of_a_step_are_single_steps_and_every_state_is_kept() -> None:
    torch.manual_seed(1)
    state, kept = torch.randn(5, H, P, N), torch.zeros(5, 3, H, P, N)
    x, dt = torch.randn(2, 2, 3, H, P)
    write, read = torch.randn(2, 2, 3, 2, N)
    decay, rows = -torch.rand(H, P, N), torch.tensor([3, -1])
    step = patched("inference-state-step", step_of_019)
    one = state.clone()
    together = step(
        state, x, dt, decay, write, read, dt_softplus=True,
        state_batch_indices=rows, intermediate_ssm_states=kept,
    )  # fmt: skip
    for at in range(3):
        each = step(
            one, x[:, at], dt[:, at], decay, write[:, at], read[:, at], dt_softplus=True,
            state_batch_indices=rows,
        )  # fmt: skip
        torch.testing.assert_close(together[:, at], each)
        torch.testing.assert_close(kept[3, at], one[3])
    torch.testing.assert_close(state, one)
    assert not together[1].any()
    assert not kept[[0, 1, 2, 4]].any()


def convolution_of_019(
    x: Any, conv_state: Any, weight: Any, bias: Any, silu_activation: Any,
    conv_state_indices: Any, intermediate_conv_states: Any = None,
) -> None:  # fmt: skip
    """Upstream's signature."""


def test_several_positions_of_a_convolution_see_those_before_them() -> None:
    torch.manual_seed(2)
    state, kept = torch.randn(4, 6, 4), torch.zeros(4, 3, 6, 4)
    x, weight, bias = torch.randn(2, 3, 6), torch.randn(6, 4), torch.randn(6)
    rows = torch.tensor([2, -1])
    update = patched("inference-convolution", convolution_of_019)
    seen = torch.cat((state[2], x[0].T), 1)
    found = update(x, state, weight, bias, "silu", rows, kept)
    for at in range(3):
        window = seen[:, at + 1 : at + 5]
        torch.testing.assert_close(kept[2, at], window)
        expected = functional.silu((window * weight).sum(1) + bias)
        torch.testing.assert_close(found[0, at], expected)
    torch.testing.assert_close(state[2], seen[:, -4:])
    assert not found[1].any()


def packed_convolution_of_019(
    x: Any, weight: Any, bias: Any, cu_seqlens: Any, initial_states: Any = None,
    activation: Any = "silu", precomputed_seq_idx: Any = None, precomputed_seq_start: Any = None,
) -> None:  # fmt: skip
    """Upstream's signature."""


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_packed_prompts_are_convolved_one_by_one(state: bool, known: bool) -> None:
    torch.manual_seed(3)
    # Three requests of 5, 0 and 2 tokens, the last shorter than the window.
    bounds = [0, 5, 5, 7]
    x, weight, bias = torch.randn(7, 6), torch.randn(6, 4), torch.randn(6)
    first = torch.randn(3, 6, 3)
    convolve = patched("inference-packed-convolution", packed_convolution_of_019)
    places = {
        "precomputed_seq_idx": torch.tensor([0] * 5 + [2] * 2, dtype=torch.int32),
        "precomputed_seq_start": torch.tensor([0] * 5 + [5] * 2, dtype=torch.int32),
    }
    found = convolve(
        x, weight, bias, torch.tensor(bounds, dtype=torch.int32), first if state else None,
        **(places if known else {}),
    )  # fmt: skip
    for request, (start, end) in enumerate(pairwise(bounds)):
        before = first[request] if state else torch.zeros(6, 3)
        seen = torch.cat((before, x[start:end].T), 1)
        for at in range(end - start):
            expected = functional.silu((seen[:, at : at + 4] * weight).sum(1) + bias)
            torch.testing.assert_close(found[start + at], expected)
