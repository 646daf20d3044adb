"""The chunked references against the recurrences that they stand for, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from accel_bridge.kernels import CONTRACTS
from accel_bridge.kernels.linear_attention import CHUNK

from . import naive_recurrences as naive
from .support import random

Inputs = dict[str, Any]
NAIVE = {
    "causal_convolution": naive.convolution,
    "state_space_scan": naive.scan,
    "gated_delta_rule": naive.delta_rule,
}
#: One position, less than a chunk, exactly two, and two and a bit.
LENGTHS = (1, 5, 2 * CHUNK, 2 * CHUNK + 3)


def ids(batch: int, length: int) -> torch.Tensor:
    """Sequences of all kinds of lengths; a border at the end of a chunk, and one beside it."""
    starts = torch.zeros(batch, length, dtype=torch.int32)
    for item, borders in enumerate(((2, 3, CHUNK, CHUNK + 1), (CHUNK - 1, 2 * CHUNK))):
        for border in borders:
            if border < length:
                starts[item, border] = 1
    return starts.cumsum(1).to(torch.int32)


def convolution_inputs(length: int, packed: bool, state: bool) -> Inputs:
    return {
        "input": random(2, 6, length),
        "weight": random(6, 4, seed=1),
        "bias": random(6, seed=2),
        "silu": True,
        "initial_state": random(2, 6, 3, seed=3) if state else None,
        "sequence_ids": ids(2, length) if packed else None,
    }


def scan_inputs(length: int, packed: bool, state: bool) -> Inputs:
    step = functional.softplus(random(2, length, 4, seed=1))
    return {
        "input": random(2, length, 4, 5),
        "log_decay": -step * torch.tensor([0.01, 0.1, 1.0, 8.0]).double(),
        "write": random(2, length, 2, 3, seed=2),
        "read": random(2, length, 2, 3, seed=3),
        "step": step,
        "skip": random(4, seed=4),
        "gate": random(2, length, 4, 5, seed=5),
        "initial_state": random(2, 4, 5, 3, seed=6) if state else None,
        "sequence_ids": ids(2, length) if packed else None,
    }


def delta_inputs(length: int, packed: bool, state: bool) -> Inputs:
    return {
        "query": random(2, length, 2, 6),
        "key": functional.normalize(random(2, length, 2, 6, seed=1), dim=-1),
        "value": random(2, length, 4, 5, seed=2),
        "log_decay": -random(2, length, 4, seed=3).abs()
        * torch.tensor([0.0, 0.01, 0.1, 2.0]).double(),
        "beta": random(2, length, 4, seed=4).sigmoid(),
        "scale": 0.3,
        "initial_state": random(2, 4, 6, 5, seed=5) if state else None,
        "sequence_ids": ids(2, length) if packed else None,
    }


BUILD: dict[str, Callable[[int, bool, bool], Inputs]] = {
    "causal_convolution": convolution_inputs,
    "state_space_scan": scan_inputs,
    "gated_delta_rule": delta_inputs,
}


def results(function: Callable[..., Any], inputs: Inputs) -> list[torch.Tensor]:
    """Outputs, and the gradients of every float tensor for their weighted sum."""
    leaves = [
        value.requires_grad_()
        for value in inputs.values()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    arguments = list(inputs.items())
    found = function(arguments[0][1], **dict(arguments[1:]))
    outputs = [found] if isinstance(found, torch.Tensor) else list(found)
    weights = [random(*output.shape, seed=9) for output in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, weights)]


def assert_same(name: str, inputs: Inputs) -> None:
    """The reference gives what the recurrence gives."""
    expected = results(NAIVE[name], inputs)
    found = results(CONTRACTS[name].reference, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("packed", "state"), [(False, False), (False, True), (True, False)])
def test_the_reference_is_the_recurrence(name: str, length: int, packed: bool, state: bool) -> None:
    assert_same(name, BUILD[name](length, packed, state))


@pytest.mark.parametrize("name", NAIVE)
def test_nothing_at_all(name: str) -> None:
    """No position: no output, and the state stays."""
    inputs = BUILD[name](0, False, True)
    found = CONTRACTS[name].reference(**inputs)
    if isinstance(found, torch.Tensor):
        assert found.shape == inputs["input"].shape
    else:
        assert found[0].numel() == 0
        assert torch.equal(found[1], inputs["initial_state"])


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("causal_convolution", {"weight": random(5, 4)}, "a weight of shape"),
        ("causal_convolution", {"initial_state": random(2, 6, 4)}, "initial_state is"),
        ("causal_convolution", {"sequence_ids": ids(2, 4)}, "sequence_ids is"),
        ("state_space_scan", {"log_decay": random(2, 5, 3)}, "log_decay is"),
        ("state_space_scan", {"write": random(2, 5, 3, 3)}, "write"),
        ("gated_delta_rule", {"beta": random(2, 5, 3)}, "beta"),
        ("gated_delta_rule", {"initial_state": random(2, 4, 5, 6)}, "initial_state is"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, wrong: Inputs, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CONTRACTS[name].reference(**{**BUILD[name](5, False, False), **wrong})


class Operations(TorchDispatchMode):
    """How many torch runs."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_chunk_is_few_operations() -> None:
    """Each is a kernel's launch on a GPU, one after the other, and a rehearsal's time."""
    counts = []
    for chunks in (8, 16):
        with Operations() as mode:
            results(
                CONTRACTS["gated_delta_rule"].reference, delta_inputs(chunks * CHUNK, False, True)
            )
        counts.append(mode.count)
    assert (counts[1] - counts[0]) / 8 <= 8


def test_autocast_reaches_the_gradients() -> None:
    rule, inputs = CONTRACTS["gated_delta_rule"].reference, delta_inputs(2 * CHUNK, False, True)
    narrow = {key: one.float() if torch.is_tensor(one) else one for key, one in inputs.items()}
    with torch.autocast("cpu", torch.bfloat16):
        found = results(rule, narrow)
    for one, other in zip(found, results(rule, inputs), strict=True):
        assert functional.cosine_similarity(one.double().flatten(), other.flatten(), 0) > 0.999
