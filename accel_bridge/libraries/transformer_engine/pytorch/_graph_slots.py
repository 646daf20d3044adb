"""A callable with one set of inputs, captured in graphs and played again.

Source of the semantics: transformer_engine/pytorch/graph.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .distributed import get_all_rng_states, graph_safe_rng_available
from .module.base import TransformerEngineBaseModule
from .ops import Sequential
from .ops.op import BasicOperation
from .quantization import FP8GlobalStateManager
from .utils import make_weak_ref

Tensors = tuple[Any, ...]


@contextmanager
def _capture(graph: Any, pool: Any) -> Iterator[None]:
    """``torch.cuda.graph`` without garbage collection, which may destroy another graph in it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _fresh_gradients(tensors: Tensors) -> Iterator[None]:
    """Without the gradients of ``tensors``, which come back afterwards."""
    before = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    yield
    for tensor, gradient in zip(tensors, before, strict=True):
        tensor.grad = gradient


def _wanted(tensors: Tensors) -> Tensors:
    return tuple(tensor for tensor in tensors if tensor is not None and tensor.requires_grad)


class Slot:
    """One callable, one set of inputs; graphs of its forward and backward pass.

    :param kwargs: tensors by name.
    """

    def __init__(
        self, function: torch.nn.Module, args: Tensors, kwargs: dict[str, Any], trains: bool
    ) -> None:
        self.function = function
        self.args, self.kwargs = args, kwargs
        self.trains = trains
        flat, _ = tree_flatten(args)
        assert all(isinstance(one, torch.Tensor) for one in flat), (
            "In the beta API, sample_args for each callable must contain only Tensors. "
            "Other types are not allowed."
        )
        more, _ = tree_flatten([kwargs[name] for name in kwargs])
        self.inputs: Tensors = (*flat, *more)
        self.parameters: Tensors = tuple(function.parameters())
        self.graph = torch.cuda.CUDAGraph()
        self.backward_graph = torch.cuda.CUDAGraph()
        self.wgrad_graph = torch.cuda.CUDAGraph()
        if graph_safe_rng_available():
            for state in get_all_rng_states().values():
                for graph in (self.graph, self.backward_graph, self.wgrad_graph):
                    graph.register_generator_state(state)
        self.modules: set[torch.nn.Module] = set()
        self.delays = False
        self.outputs: Tensors = ()
        self.spec: TreeSpec | None = None
        self.grad_outputs: Tensors = ()
        self.grad_inputs: Tensors = ()

    @property
    def surface(self) -> Tensors:
        """Everything that a gradient may be asked for."""
        return (*self.inputs, *self.parameters)

    def warm_up(self, iterations: int, allow_unused_input: bool) -> None:
        """Run outside of a graph, and learn which modules and parameters take part."""

        def visit(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
            if isinstance(module, (TransformerEngineBaseModule, BasicOperation)):
                self.modules.add(module)
            elif isinstance(module, Sequential):
                # A chain calls its operations together, not one by one.
                self.modules.update(
                    one for one in module.modules() if isinstance(one, BasicOperation)
                )

        for iteration in range(iterations):
            hooks = [one.register_forward_hook(visit) for one in self.function.modules()]
            outputs, _ = tree_flatten(self.function(*self.args, **self.kwargs))
            for hook in hooks:
                hook.remove()
            if self.trains:
                self._warm_up_backward(iteration, tuple(outputs), allow_unused_input)
            del outputs
        for module in self.function.modules():
            if hasattr(module, "is_first_microbatch"):
                module.is_first_microbatch = True  # type: ignore[assignment]

    def _warm_up_backward(self, iteration: int, outputs: Tensors, allow_unused_input: bool) -> None:
        inputs = _wanted(self.surface)
        wanted = _wanted(outputs)
        with _fresh_gradients(inputs):
            torch.autograd.backward(wanted, tuple(torch.empty_like(one) for one in wanted))
            reached = [tensor.grad is not None for tensor in inputs]
        count = len(_wanted(self.inputs))
        assert allow_unused_input or all(reached[:count]), (
            "The input tensor requires grad, but the grad is None after backward pass."
        )
        pairs = zip(inputs[count:], reached[count:], strict=True)
        used = tuple(parameter for parameter, is_used in pairs if is_used)
        if len(used) != len(self.parameters):
            assert iteration == 0, (
                "no-grad params should only be used as inputs in the first warmup iteration"
            )
            self.parameters = used
        delayed = self._delayed()
        for module in delayed:
            module.backward_dw()
        self.delays = bool(delayed)

    def _every_module(self) -> list[Any]:
        return list(self.modules)

    def _delayed(self) -> list[Any]:
        return [
            module
            for module in self._every_module()
            if hasattr(module, "need_backward_dw") and module.need_backward_dw()
        ]

    def capture_forward(self, pool: Any) -> None:
        """Capture the forward pass; the outputs stay where they are."""
        with _capture(self.graph, pool):
            outputs = self.function(*self.args, **self.kwargs)
        flat, self.spec = tree_flatten(outputs)
        self.outputs = tuple(flat)

    def capture_backward(self, pool: Any, retains: bool, shared: dict[Any, Tensors] | None) -> None:
        """Capture the backward pass.

        :param shared: gradients of outputs, by their sizes, for several slots; or None.
        """
        wanted = _wanted(self.outputs)
        key = tuple((one.shape, one.dtype, one.layout) for one in wanted)
        if shared is not None and key in shared:
            self.grad_outputs = shared[key]
        else:
            self.grad_outputs = tuple(
                torch.empty_like(one) if one is not None and one.requires_grad else None
                for one in self.outputs
            )
            if shared is not None:
                shared[key] = self.grad_outputs
        gradients: dict[int, Any] = {}
        if self.trains:
            inputs = _wanted(self.surface)
            with _fresh_gradients(inputs), _capture(self.backward_graph, pool):
                torch.autograd.backward(
                    wanted,
                    tuple(one for one in self.grad_outputs if one is not None),
                    retain_graph=retains,
                )
                gradients = {id(tensor): tensor.grad for tensor in inputs}
        self.grad_inputs = tuple(gradients.get(id(tensor)) for tensor in self.surface)

    def capture_wgrad(self, pool: Any) -> None:
        """Capture the delayed weight gradients."""
        with _capture(self.wgrad_graph, pool):
            for module in self._delayed():
                module.backward_dw()

    def weaken(self, outputs: bool = False, gradients: bool = False) -> None:
        """Let the pool have the memory of tensors that were taken by now."""
        if outputs:
            self.outputs = make_weak_ref(self.outputs)
        if gradients:
            self.grad_inputs = make_weak_ref(self.grad_inputs)

    def replay(self, caches: bool) -> Callable[..., Any]:
        """A function that plays the graphs.

        :param caches: it is told by ``is_first_microbatch`` whether FP8 copies of weights are new.
        """
        names = list(self.kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            skips = None
            if caches:
                assert isinstance(kwargs.get("is_first_microbatch"), bool), (
                    "`is_first_microbatch` boolean kwarg must be provided for FP8 weight caching."
                )
                skips = not kwargs["is_first_microbatch"]
            for name in names:
                if name not in kwargs:
                    raise TypeError(
                        f"Graphed callable was initialized with kwarg {name}, "
                        "but it was not provided in graph replay"
                    )
            flat, _ = tree_flatten(args)
            more, _ = tree_flatten([kwargs[name] for name in names])
            out = _Replay.apply(self, skips, *flat, *more, *self.parameters)  # type: ignore[no-untyped-call]
            assert self.spec is not None
            return tree_unflatten(out, self.spec)

        return call

    def share_fp8_state(self) -> None:
        """Let the recipe of the current context update the scales of the captured modules."""
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        group = FP8GlobalStateManager.get_fp8_group()
        attends = getattr(recipe, "fp8_mha", False) or getattr(recipe, "fp8_dpa", False)
        for module in self.function.modules():
            if module not in self.modules:
                continue
            metas: Sequence[dict[str, Any]] = ()
            if isinstance(module, BasicOperation):
                modes = [mode for mode in ("forward", "backward") if module.num_quantizers(mode)]
                metas = [module._fp8_metas[mode] for mode in modes]  # type: ignore[index]
            elif attends or type(module).__name__ != "DotProductAttention":
                metas = [module.fp8_meta]  # type: ignore[list-item]
            for meta in metas:
                meta["fp8_group"], meta["recipe"] = group, recipe
                FP8GlobalStateManager.add_fp8_tensors_to_global_buffer(meta)

    def backward_dw(self) -> None:
        """Play the delayed weight gradients."""
        if not self.delays:
            return
        self.wgrad_graph.replay()
        for module in self.modules:
            if isinstance(module, TransformerEngineBaseModule) and module.need_backward_dw():
                module._trigger_wgrad_accumulation_and_reduce_hooks()

    def reset(self) -> None:
        """Free the graphs."""
        for graph in (self.graph, self.backward_graph, self.wgrad_graph):
            graph.reset()


class _Replay(torch.autograd.Function):
    """Plays a slot's graphs; inputs and gradients are copied to where the graphs read them."""

    @staticmethod
    def forward(ctx: Any, slot: Slot, skips: bool | None, *inputs: Any) -> Any:
        ctx.slot = slot
        ctx.is_first = FP8GlobalStateManager.is_first_fp8_module()
        if ctx.is_first and skips is not None:
            FP8GlobalStateManager.set_skip_fp8_weight_update_tensor(skips)
        for place, given in zip(slot.inputs, inputs, strict=False):
            if isinstance(place, torch.Tensor) and place.data_ptr() != given.data_ptr():
                place.copy_(given)
        slot.graph.replay()
        return tuple(None if one is None else one.detach() for one in slot.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        slot: Slot = ctx.slot
        for place, given in zip(slot.grad_outputs, gradients, strict=True):
            if place is not None and place.data_ptr() != given.data_ptr():
                place.copy_(given)
        slot.backward_graph.replay()
        if ctx.is_first:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        return (None, None, *(None if one is None else one.detach() for one in slot.grad_inputs))
