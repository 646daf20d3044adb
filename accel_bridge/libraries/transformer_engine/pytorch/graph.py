"""Modules in captured graphs of the device.

Source of the names: transformer_engine/pytorch/graph.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from accel_bridge import BridgeError
from accel_bridge.kernels.active import features

from ..common.recipe import DelayedScaling, Recipe
from ._capturing import is_graph_capturing, set_capture_end, set_capture_start
from .quantization import FP8GlobalStateManager, autocast, get_default_fp8_recipe

__all__ = [
    "graph_pool_handle",
    "is_graph_capturing",
    "make_graphed_callables",
    "restore_fp8_tensors",
    "save_fp8_tensors",
    "set_capture_end",
    "set_capture_start",
]


def graph_pool_handle() -> Any:
    """A new pool of memory for graphs."""
    return torch.cuda.graph_pool_handle()


def save_fp8_tensors(modules: Iterable[torch.nn.Module], recipe: Recipe | None) -> list[Any] | None:
    """Copies of all modules' scales and histories; None for recipes that keep none."""
    from .module.base import TransformerEngineBaseModule
    from .ops.op import BasicOperation

    if not isinstance(recipe, DelayedScaling):
        return None
    saved: list[Any] = []
    for module in (part for whole in modules for part in whole.modules()):
        tensors: Any = None
        if isinstance(module, TransformerEngineBaseModule):
            if module.primary_weights_in_fp8:
                module.adjust_amax_history_length(recipe.amax_history_len)
            tensors = module.get_fp8_meta_tensors()
        elif isinstance(module, BasicOperation):
            module.reset_recipe_state(recipe=recipe)
            tensors = module._save_fp8_metas()
        saved.append(tensors)
    return saved


def restore_fp8_tensors(modules: Iterable[torch.nn.Module], fp8_tensors: list[Any] | None) -> None:
    """Undo what happened to scales and histories since :func:`save_fp8_tensors`.

    :raises RuntimeError: other modules than those that were saved.
    """
    from .module.base import TransformerEngineBaseModule
    from .ops.op import BasicOperation

    if fp8_tensors is None:
        return
    for module in (part for whole in modules for part in whole.modules()):
        tensors = fp8_tensors.pop(0)
        if isinstance(module, TransformerEngineBaseModule):
            module.reset_fp8_meta_tensors(tensors)
        elif isinstance(module, BasicOperation):
            module._load_fp8_metas(tensors)
    if fp8_tensors:
        raise RuntimeError(
            f"Got FP8 state for {len(fp8_tensors)} more modules than expected. "
            "There is probably a discrepancy with `save_fp8_tensors`."
        )


def _renamed(old: str, new: str, old_value: Any, value: Any) -> Any:
    """The value of an argument that has an older name.

    :raises ValueError: both were given.
    """
    if old_value is None:
        return value
    if value is not None:
        raise ValueError(
            f"make_graphed_callables has deprecated `{old}` kwarg "
            f"in favor of `{new}`, but both kwargs are set."
        )
    warnings.warn(
        f"make_graphed_callables has deprecated `{old}` kwarg in favor of `{new}`. "
        f"`{old}` will be removed in a future release.",
        DeprecationWarning,
        stacklevel=3,
    )
    return old_value


def make_graphed_callables(
    modules: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    sample_kwargs: Any = None,
    fp8_enabled: bool | tuple[bool, ...] | None = None,
    fp8_calibrating: bool | None = None,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    fp8_weight_caching: bool | None = None,
    enabled: bool | tuple[bool, ...] | None = None,
    calibrating: bool | None = None,
    recipe: Recipe | None = None,
    amax_reduction_group: Any = None,
    cache_quantized_params: bool | None = None,
    _order: Sequence[float] | None = None,
    _num_layers_per_chunk: Sequence[int] | int | None = None,
    pool: Any = None,
    retain_graph_in_backward: bool = False,
    _reuse_graph_input_output_buffers: bool = False,
) -> Any:
    """The modules, whose forward and backward passes are played from captured graphs.

    The five ``fp8_`` arguments are older names of those after them.

    :param modules: a module, or a tuple.
    :param sample_args: a tuple of tensors for each, as they will be called with.
    :param num_warmup_iters: runs before the capture.
    :param allow_unused_input: an input that needs a gradient may get none.
    :param sample_kwargs: tensors by name for each.
    :param enabled: FP8, for all or for each.
    :param cache_quantized_params: FP8 copies of weights are made where ``is_first_microbatch``.
    :param _order: of a pipeline's passes; see ``_graph_order.Order``.
    :param _num_layers_per_chunk: layers of each of the pipeline's chunks.
    :param pool: memory that the graphs share with others.
    :param _reuse_graph_input_output_buffers: passes that are never under way together share the
        memory of inputs and outputs; needs ``_order``.
    :returns: the modules (with ``_order`` a function for each sample), with functions
        ``backward_dw`` and ``reset``.
    :raises BridgeError: the device captures no graphs.
    """
    enabled = _renamed("fp8_enabled", "enabled", fp8_enabled, enabled) or False
    calibrating = _renamed("fp8_calibrating", "calibrating", fp8_calibrating, calibrating) or False
    recipe = _renamed("fp8_recipe", "recipe", fp8_recipe, recipe)
    group = _renamed("fp8_group", "amax_reduction_group", fp8_group, amax_reduction_group)
    caches = _renamed(
        "fp8_weight_caching", "cache_quantized_params", fp8_weight_caching, cache_quantized_params
    )
    if not features().cuda_graphs:
        raise BridgeError(
            "make_graphed_callables() needs a device that captures graphs",
            evidence="the active backend says that its device does not",
            next="leave the graphs out (Megatron: no --cuda-graph-impl, no --external-cuda-graph)",
        )
    is_one = not isinstance(modules, tuple)
    whole: tuple[torch.nn.Module, ...] = (modules,) if is_one else modules
    args = [sample_args] if is_one else list(sample_args)
    kwargs = [{} for _ in args] if sample_kwargs is None else sample_kwargs
    kwargs = [kwargs] if is_one and sample_kwargs is not None else list(kwargs)
    for module in whole:
        assert isinstance(module, torch.nn.Module), f"Graphing for {type(module)} is not supported."
    uses = enabled if isinstance(enabled, tuple) else (enabled,) * len(whole)
    assert len(uses) == len(whole), (
        f"enabled length ({len(uses)}) must match modules length ({len(whole)})"
    )
    recipe = (recipe or get_default_fp8_recipe()) if any(uses) else None
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. "
            "Please set `cache_enabled=False`."
        )
    saved = save_fp8_tensors(whole, recipe)
    contexts: dict[int, Callable[[], Any]] = {
        id(module): lambda used=used: autocast(  # type: ignore[misc]
            enabled=used,
            calibrating=calibrating,
            recipe=recipe,
            amax_reduction_group=group,
            _graph=True,
        )
        for module, used in zip(whole, uses, strict=True)
    }
    if caches:
        FP8GlobalStateManager.set_skip_fp8_weight_update_tensor(False)
    set_capture_start()
    try:
        with ExitStack() as stack:
            _keep_random_states(stack)
            _call_in_contexts(stack, whole, contexts)
            from ._graph_capture import capture

            graphed = capture(
                whole,
                args,
                kwargs,
                num_warmup_iters,
                allow_unused_input,
                bool(caches),
                _order,
                _num_layers_per_chunk,
                pool,
                retain_graph_in_backward,
                _reuse_graph_input_output_buffers,
            )
        restore_fp8_tensors(whole, saved)
    finally:
        set_capture_end()
    return graphed[0] if is_one else tuple(graphed)


def _keep_random_states(stack: ExitStack) -> None:
    """Set the random generators back at the end: warming up draws from them."""
    from .distributed import get_all_rng_states, graph_safe_rng_available

    if graph_safe_rng_available():
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        for generator in (default, *get_all_rng_states().values()):
            stack.callback(generator.set_state, generator.get_state())
    else:
        stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state())


def _call_in_contexts(
    stack: ExitStack, modules: Sequence[torch.nn.Module], contexts: dict[int, Callable[[], Any]]
) -> None:
    """Let each of the modules run in its own FP8 context, until the end."""

    def wrap(kind: Any) -> None:
        original = kind.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if id(self) not in contexts:
                return original(self, *args, **kwargs)
            with contexts[id(self)]():
                return original(self, *args, **kwargs)

        own = "__call__" in vars(kind)
        kind.__call__ = call
        stack.callback(_put_back, kind, original if own else None)

    for kind in {type(module) for module in modules}:
        wrap(kind)


def _put_back(kind: Any, original: Any) -> None:
    if original is None:
        del kind.__call__
    else:
        kind.__call__ = original
