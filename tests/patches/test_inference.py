"""Inference: prompts that are tensors, hybrid models' scans and steps, vLLM beside a trainer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from patched_function import patched
from torch.nn import functional

from accel_bridge.patches import inference, inference_scan, serving

H, P, N = 4, 8, 16


class Engine:
    """What the patch changes of Megatron's dynamic engine."""

    def add_request(self, request_id: int, prompt: Any, sampling_params: Any = None) -> Any:
        return request_id, prompt, sampling_params


def test_a_prompt_of_numbers_becomes_a_list() -> None:
    add_request = patched(inference.PATCHES, Engine.add_request, "inference-prompt")
    engine, numbers = Engine(), torch.tensor([3, 1, 4])
    assert add_request(engine, 1, numbers, "greedy") == (1, [3, 1, 4], "greedy")
    assert add_request(engine, 1, prompt=numbers) == (1, [3, 1, 4], None)
    assert add_request(engine, 1, "text") == (1, "text", None)
    # What the engine refuses for another reason stays as it is.
    wrong = numbers.to(torch.int32)
    assert add_request(engine, 1, wrong)[1] is wrong


class Sampling:
    """As Megatron's: it refuses an index of the device."""

    def log_probs_kernel(
        self, logits: torch.Tensor, context: Any, token_to_request_index: Any = None
    ) -> list[float]:
        assert token_to_request_index is None or not token_to_request_index.is_cuda
        return cast("list[float]", logits[token_to_request_index].flatten().tolist())


def test_an_index_on_the_host_is_taken_where_the_host_is_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    upstream, index = Sampling.log_probs_kernel, torch.tensor([1, 0, 1])
    with pytest.raises(AssertionError):
        upstream(Sampling(), torch.tensor([2.0, 3.0]), None, index)
    log_probs = patched(inference.PATCHES, upstream, "inference-log-probs")
    assert log_probs(Sampling(), torch.tensor([2.0, 3.0]), None, index) == [3.0, 2.0, 3.0]
    assert log_probs(Sampling(), torch.tensor([2.0]), None) == [2.0]


def scanned(id: str, upstream: Callable[..., Any]) -> Any:
    """A patched function whose kernels are the contracts' references."""
    host = SimpleNamespace(kernel=lambda contract: contract.reference)
    return patched(inference_scan.PATCHES, upstream, id, host=host)


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
    scan = scanned("inference-scan", scan_of_019)
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
    step = scanned("inference-state-step", step_of_019)
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
    update = scanned("inference-convolution", convolution_of_019)
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
    convolve = scanned("inference-packed-convolution", packed_convolution_of_019)
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


@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_a_sleep_mode_is_asked_for_where_there_is_one(
    asked: bool, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(device_type="cpu", is_sleep_mode_available=lambda: available)
    module = SimpleNamespace(current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)
    said: list[str] = []
    host = SimpleNamespace(say_once=said.append)
    make = patched(serving.PATCHES, lambda self: self.enable_sleep_mode, "vllm-sleep", host=host)
    assert make(SimpleNamespace(enable_sleep_mode=asked)) is (asked and available)
    assert bool(said) is (asked and not available)


def test_a_layer_multiplies_by_the_weight_that_a_trainer_has_updated() -> None:
    new = patched(serving.PATCHES, None, "vllm-weights")
    # It replaces a function whose parameters must be pinned.
    assert serving.PATCHES[1].parameters == tuple(inspect.signature(new).parameters)
    layer: Any = torch.nn.Linear(2, 2)
    new(layer, remove_weight=True)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
    x = torch.randn(3, 2)
    assert torch.equal(layer.cpu_linear(x, layer.weight, None), x)
