"""Causal windows on cuDNN through its frontend, where nvidia-cudnn-frontend is installed.

cuDNN's attention has windows, but torch's operator for it does not pass them on.

Legend: b batch, s sequence, n query heads, g key/value heads, d head size.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import torch

from accel_bridge.backends.cuda.kernels._choice import without_package

#: The releases that were measured.
TESTED: Final = ("1.15.0",)
#: Numbers of the tensors in a graph.
_QUERY, _KEY, _VALUE, _OUTPUT, _STATISTICS, _GRADIENT, _FOR_QUERY, _FOR_KEY, _FOR_VALUE = range(
    1, 10
)


@cache
def missing() -> str | None:
    """Why the frontend cannot be used, or None."""
    return without_package("nvidia-cudnn-frontend", "cudnn", TESTED, "windows")


@cache
def _handle(device: int) -> Any:
    """cuDNN's handle for a GPU."""
    cudnn: Any = importlib.import_module("cudnn")
    with torch.cuda.device(device):
        return cudnn.create_handle()


@dataclass(frozen=True, slots=True)
class _Form:
    """All that a graph is made for: shapes and strides of q, k and v, and what it computes."""

    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: int
    left: int
    scale: float
    exact: bool

    @classmethod
    def of(
        cls, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, scale: float
    ) -> _Form:
        tensors = (query, key, value)
        return cls(
            tuple(tuple(one.shape) for one in tensors),
            tuple(one.stride() for one in tensors),
            query.dtype,
            query.device.index or 0,
            left,
            scale,
            torch.are_deterministic_algorithms_enabled(),
        )

    def band(self, cudnn: Any) -> dict[str, Any]:
        """cuDNN's words for ``i - left <= j <= i``."""
        return {
            "attn_scale": self.scale,
            "diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT,
            "diagonal_band_left_bound": self.left + 1,
            "diagonal_band_right_bound": 0,
        }


class _Graph:
    """A graph of cuDNN's that is being built, then one that can be executed."""

    def __init__(self, form: _Form) -> None:
        cudnn: Any = importlib.import_module("cudnn")
        self.form, self.cudnn = form, cudnn
        types = cudnn.data_type
        self._type = types.HALF if form.dtype == torch.float16 else types.BFLOAT16
        self.graph = cudnn.pygraph(
            io_data_type=self._type,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            handle=_handle(form.device),
        )

    def tensor(self, number: int, like: int) -> Any:
        """An input of the shape and strides of q (0), k (1) or v (2)."""
        return self.graph.tensor(
            name=str(number),
            dim=list(self.form.shapes[like]),
            stride=list(_dense(self.form, like) if number > _VALUE else self.form.strides[like]),
            data_type=self._type,
            uid=number,
        )

    def statistics(self) -> dict[str, list[int]]:
        """Shape and strides of the log-sum-exp [b, n, s, 1]."""
        b, n, s, _ = self.form.shapes[0]
        return {"dim": [b, n, s, 1], "stride": [n * s, s, 1, 1]}

    def output(self, tensor: Any, number: int, like: int) -> None:
        """Let a result of q's, k's or v's shape be written."""
        tensor.set_output(True).set_uid(number).set_dim(list(self.form.shapes[like]))
        tensor.set_stride(list(_dense(self.form, like))).set_data_type(self._type)

    def build(self) -> _Graph:
        """Choose cuDNN's kernels."""
        graph, modes = self.graph, self.cudnn.heur_mode
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([modes.A, modes.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self._size = max(graph.get_workspace_size(), 1)
        return self

    def run(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Execute it on the current stream."""
        device, handle = self.form.device, _handle(self.form.device)
        self.cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(device).cuda_stream)
        workspace = torch.empty(self._size, dtype=torch.uint8, device=f"cuda:{device}")
        pointers = {number: tensor.data_ptr() for number, tensor in tensors.items()}
        self.graph.execute(pointers, workspace.data_ptr(), handle=handle)


def _dense(form: _Form, like: int) -> tuple[int, ...]:
    """Strides of what is allocated like q, k or v: dense, in the order of its strides."""
    shape, strides = form.shapes[like], form.strides[like]
    order = sorted(range(len(shape)), key=lambda place: (-strides[place], place))
    made, step = [0] * len(shape), 1
    for place in reversed(order):
        made[place] = step
        step *= shape[place]
    return tuple(made)


@lru_cache(maxsize=64)
def _forward(form: _Form) -> _Graph:
    graph = _Graph(form)
    inputs = (graph.tensor(number, number - _QUERY) for number in (_QUERY, _KEY, _VALUE))
    output, statistics = graph.graph.sdpa(*inputs, generate_stats=True, **form.band(graph.cudnn))
    graph.output(output, _OUTPUT, 0)
    sizes = graph.statistics()
    statistics.set_output(True).set_uid(_STATISTICS).set_dim(sizes["dim"])
    statistics.set_stride(sizes["stride"]).set_data_type(graph.cudnn.data_type.FLOAT)
    return graph.build()


@lru_cache(maxsize=64)
def _backward(form: _Form) -> _Graph:
    graph = _Graph(form)
    inputs = [graph.tensor(number, number - _QUERY) for number in (_QUERY, _KEY, _VALUE)]
    inputs += [graph.tensor(number, 0) for number in (_OUTPUT, _GRADIENT)]
    inputs.append(
        graph.graph.tensor(
            name="statistics",
            data_type=graph.cudnn.data_type.FLOAT,
            uid=_STATISTICS,
            **graph.statistics(),
        )
    )
    exact = {"use_deterministic_algorithm": form.exact}
    results = graph.graph.sdpa_backward(*inputs, **exact, **form.band(graph.cudnn))
    for like, (tensor, number) in enumerate(
        zip(results, (_FOR_QUERY, _FOR_KEY, _FOR_VALUE), strict=True)
    ):
        graph.output(tensor, number, like)
    return graph.build()


def _like(form: _Form, like: int, device: torch.device) -> torch.Tensor:
    """Memory for a result of q's, k's or v's shape."""
    return torch.empty_strided(
        form.shapes[like], _dense(form, like), dtype=form.dtype, device=device
    )


class _Window(torch.autograd.Function):
    """[b, n, s, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        left: int,
        scale: float,
    ) -> torch.Tensor:
        form = _Form.of(query, key, value, left, scale)
        output = _like(form, 0, query.device)
        statistics = query.new_empty((*query.shape[:3], 1), dtype=torch.float32)
        tensors = {_QUERY: query, _KEY: key, _VALUE: value}
        _forward(form).run({**tensors, _OUTPUT: output, _STATISTICS: statistics})
        ctx.save_for_backward(query, key, value, output, statistics)
        ctx.form = form
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, statistics = ctx.saved_tensors
        form: _Form = ctx.form
        gradient = gradients[0]
        if gradient.stride() != output.stride():
            gradient = torch.empty_like(output).copy_(gradient)
        grads = [_like(form, like, query.device) for like in range(3)]
        saved = (query, key, value, output, statistics, gradient)
        _backward(form).run(dict(enumerate((*saved, *grads), _QUERY)))
        return (*grads, None, None)


def window_attention(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], left: int, scale: float
) -> torch.Tensor:
    """q [b, n, s, d], k and v [b, g, s, d] -> [b, n, s, d]: keys ``i - left <= j <= i``."""
    ready = (one if _is_aligned(one) else one.contiguous() for one in tensors)
    output: torch.Tensor = _Window.apply(*ready, left, scale)
    return output


def _is_aligned(tensor: torch.Tensor) -> bool:
    """Whether cuDNN reads a tensor as it is: rows of d numbers, each at a multiple of 16 bytes."""
    *others, last = tensor.stride()
    apart = all(stride % 8 == 0 and stride > 0 for stride in others)
    return last == 1 and apart and tensor.data_ptr() % 16 == 0
