"""Ties of ``topk``: the first of equal values, as CUDA takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from accel_bridge.device import DeviceRedirection, first_of_equals
from accel_bridge.device.backend import DeviceSpec


@pytest.fixture(autouse=True)
def redirected(cpu_spec: DeviceSpec) -> Iterator[None]:
    with DeviceRedirection(replace(cpu_spec, parts=(first_of_equals,))):
        yield


def test_the_first_of_equal_values_is_taken() -> None:
    rows = torch.tensor([[0.0, 0, 0, 1, 0, 0, 0, 0], [1, 2, 2, 2, 2, 0, 2, 1]]).bfloat16()
    values, indices = torch.topk(rows, k=2, dim=1)
    assert indices.tolist() == [[3, 0], [1, 2]]
    assert values.tolist() == [[1, 0], [2, 2]]
    assert values.is_contiguous()
    assert rows.topk(3, largest=False).indices.tolist() == [[0, 1, 2], [5, 0, 7]]
    assert rows.t().topk(2, 0)[1].t().tolist() == [[3, 0], [1, 2]]


def test_values_gradients_and_errors_are_torchs() -> None:
    values = torch.randperm(64).float().reshape(4, 16).requires_grad_()
    torch.topk(values, 3, -1)[0].sum().backward()
    assert values.grad is not None
    assert values.grad.sum(-1).tolist() == [3.0] * 4
    largest = values.detach().sort(-1, descending=True)[0][:, :3]
    assert torch.equal(values.detach().topk(3).values, largest)
    with pytest.raises(RuntimeError, match="k"):
        torch.topk(values, 17)
    out = (torch.empty(4, 1), torch.empty(4, 1, dtype=torch.long))
    torch.topk(values.detach(), 1, out=out)
    assert torch.equal(out[0], largest[:, :1])
