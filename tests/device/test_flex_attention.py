"""FlexAttention's gradients on the host, which PyTorch refuses, are those of the plain formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torchs

from accel_bridge.device import DeviceRedirection, materialized_flex_attention
from accel_bridge.device.backend import DeviceSpec
from accel_bridge.process import log

WINDOW = 7
#: Their types are overloads without end.
flex_attention: Any = torchs.flex_attention
create_block_mask: Any = torchs.create_block_mask


@pytest.fixture
def redirected(cpu_spec: DeviceSpec) -> Iterator[None]:
    with DeviceRedirection(replace(cpu_spec, parts=(materialized_flex_attention,))):
        yield


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, heads, 40, 16, requires_grad=True) for heads in (4, 2, 2)]


def results(attention: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    given = inputs()
    out = attention(*given)
    return [out, *torch.autograd.grad(out.sin().sum(), given)]


def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < WINDOW)


def biased(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 10.0 * torch.tanh((score + 0.1 * h * (j - i)) / 10.0)


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    key, value = (one.repeat_interleave(2, 1) for one in (key, value))
    rows, columns = torch.arange(40)[:, None], torch.arange(40)
    heads = torch.arange(4)[:, None, None]
    scores = biased(query @ key.transpose(-1, -2) / 4, 0, heads, rows, columns)
    scores = scores.masked_fill(~seen(0, 0, rows, columns), -torch.inf)
    out: torch.Tensor = scores.softmax(-1) @ value
    return out


@pytest.mark.usefixtures("redirected")
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_the_formula(compiled: bool) -> None:
    """`torch.compile` compiles nothing: so the CPU's environment has it."""
    mask = create_block_mask(seen, None, None, 40, 40, device="cpu")
    attention = torch.compile(flex_attention) if compiled else flex_attention

    def flex(*given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = attention(*given, score_mod=biased, block_mask=mask, enable_gqa=True)
        return out

    with torch._dynamo.config.patch(disable=compiled):
        trained = results(flex)
    for found, expected in zip(trained, results(by_hand), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("redirected")
def test_it_is_said_for_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "warn_once", said.append)
    with torch.no_grad():
        flex_attention(*inputs(), enable_gqa=True)
    assert not said
    flex_attention(*inputs(), enable_gqa=True)
    assert len(said) == 1
    assert "score matrix" in said[0]
