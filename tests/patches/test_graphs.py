"""What a layer keeps for its backward pass is marked, whoever keeps it."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from accel_bridge.patches import graphs

pytestmark = pytest.mark.megatron


class Doubled(torch.autograd.Function):
    """Keeps its input in Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


def marks(compute: Any, *args: torch.Tensor, **kwargs: torch.Tensor) -> list[bool]:
    """Which inputs and outputs are marked after a layer was recorded."""

    def upstream(self: Any, args: Any, kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    cuda_graphs: Any = importlib.import_module("megatron.core.transformer.cuda_graphs")
    runner = SimpleNamespace(func=compute)
    runner.get_tensors = cuda_graphs._CudaGraphRunner.get_tensors.__get__(runner)
    context: Any = SimpleNamespace(original=upstream, module=cuda_graphs)
    result = graphs._make_record(context)(runner, args, kwargs)
    assert runner.func is compute
    result.sum().backward()  # what was kept can be read
    found = (getattr(one, "cg_buffer_metadata", None) for one in (*args, *kwargs.values(), result))
    return [bool(one and one.is_saved_for_backward) for one in found]


def test_what_is_kept_is_marked() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    weight = torch.nn.Parameter(torch.ones(8))
    # In C++, as torch's own norm keeps its input; upstream sees only what Python keeps.
    assert marks(lambda x: functional.layer_norm(x, (8,), weight), x) == [True, False]
    y = torch.randn(4, 8, requires_grad=True)
    assert marks(lambda x: Doubled.apply(x), y) == [True, False]
    z = torch.randn(4, 8, requires_grad=True)
    assert marks(lambda x: (x + 1).exp(), z) == [False, True]
    # A view has the memory of the whole; a sum keeps nothing.
    whole = torch.randn(4, 8, requires_grad=True)
    assert marks(lambda hidden: hidden.view(8, 4).sin(), hidden=whole) == [True, False]
    assert marks(lambda x: x + 1, torch.randn(4, 8, requires_grad=True)) == [False, False]


def test_a_layer_that_fails_is_left_as_it_was() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        marks(broken, torch.zeros(1))
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        torch.zeros(1, requires_grad=True).exp()
    assert kept  # no hook of the recording is left over


class Wrapped(torch.Tensor):
    """As FP8 tensors are: no memory of its own, but a part with memory."""

    _data: torch.Tensor

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Wrapped:
        tensor = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)
        tensor._data = data
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = [one._data if isinstance(one, Wrapped) else one for one in args]
        return cls(function(*plain, **(kwargs or {})))


class KeptWrapped(torch.autograd.Function):
    """Keeps its input wrapped."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(Wrapped(x.detach()))
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * ctx.saved_tensors[0]._data


def test_memory_of_a_tensor_without_its_own_is_that_of_its_parts() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    assert marks(lambda x: KeptWrapped.apply(x), x) == [True, False]
