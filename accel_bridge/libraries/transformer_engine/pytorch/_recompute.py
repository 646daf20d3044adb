"""Activations that are computed again in the backward pass.

Source of the semantics: ``checkpoint`` of transformer_engine/pytorch/distributed.py, version 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ContextDecorator,
    ExitStack,
    contextmanager,
    nullcontext,
)
from typing import Any, ClassVar

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from accel_bridge.libraries.recomputed_outputs import without_parameters

from ._random_states import get_device_state, is_graph_safe_rng_state, set_device_state
from .jit import no_torch_dynamo
from .quantization import FP8GlobalStateManager

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

_reentrant = True
_enabled = False
_phase = False


class activation_recompute_forward(AbstractContextManager[None], ContextDecorator):
    """Around a forward pass that is run again later, and around the second one.

    The first run of FP8 modules stores the scales that the second uses.
    """

    _is_first_fp8_module: ClassVar[list[bool]] = []

    def __init__(self, activation_recompute: bool = False, recompute_phase: bool = False) -> None:
        super().__init__()
        self.activation_recompute = activation_recompute
        self.recompute_phase = recompute_phase

    def __enter__(self) -> None:
        global _enabled, _phase
        self._before = (_enabled, _phase)
        _enabled = self.activation_recompute and FP8GlobalStateManager.is_fp8_enabled()
        _phase = self.recompute_phase
        if not self.activation_recompute:
            return
        stored = activation_recompute_forward._is_first_fp8_module
        if self.recompute_phase:
            FP8GlobalStateManager.IS_FIRST_FP8_MODULE = stored.pop(0)
        else:
            stored.append(FP8GlobalStateManager.IS_FIRST_FP8_MODULE)

    def __exit__(self, *exc_details: object) -> None:
        global _enabled, _phase
        _enabled, _phase = self._before


def is_fp8_activation_recompute_enabled() -> bool:
    """Whether FP8 activations of the current forward pass are computed again later."""
    return _enabled


def in_fp8_activation_recompute_phase() -> bool:
    """Whether the current forward pass is the second."""
    return _phase


def use_reentrant_activation_recompute() -> bool:
    """Whether the last checkpoint ran a backward pass inside the backward pass."""
    return _reentrant


def get_activation_recompute_contexts() -> tuple[
    activation_recompute_forward, activation_recompute_forward
]:
    """Contexts of the first and of the second forward pass."""
    first = activation_recompute_forward(activation_recompute=True, recompute_phase=False)
    return first, activation_recompute_forward(activation_recompute=True, recompute_phase=True)


class _States:
    """Random generators' states, of the host, the device and the tracker."""

    def __init__(self, tracker: Callable[[], Any] | None) -> None:
        self.tracker = tracker
        self.host = torch.get_rng_state()
        self.named = None if tracker is None else tracker().get_states()
        first = next(iter(self.named.values()), None) if self.named else None
        self.device = get_device_state(graph_safe=is_graph_safe_rng_state(first))

    def restore(self) -> None:
        torch.set_rng_state(self.host)
        set_device_state(self.device)
        if self.tracker is not None:
            self.tracker().set_states(self.named)


def _autocast_contexts() -> list[torch.amp.autocast_mode.autocast]:
    """torch's automatic casts as they are now, to be entered later."""
    cached = torch.is_autocast_cache_enabled()
    return [
        torch.autocast(
            device,
            dtype=torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
            cache_enabled=cached,
        )
        for device in sorted({"cpu", torch.empty(0, device="cuda").device.type})
    ]


class _Again:
    """Runs a function a second time as it ran the first time.

    Made before the first run, which it does not change.
    """

    def __init__(
        self, function: Callable[..., Any], tracker: Callable[[], Any] | None, inner: Any
    ) -> None:
        self._function = function
        self._tracker = tracker
        self._inner = inner
        self._states = _States(tracker)
        self._fp8 = FP8GlobalStateManager.get_autocast_state()
        self._casts = _autocast_contexts()

    @contextmanager
    def _fp8_as_before(self) -> Iterator[None]:
        # Not autocast itself: at its end it would update the scales a second time.
        now = FP8GlobalStateManager.get_autocast_state()
        FP8GlobalStateManager.set_autocast_state(self._fp8)
        try:
            yield
        finally:
            FP8GlobalStateManager.set_autocast_state(now)

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        now = _States(self._tracker)
        self._states.restore()
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.enable_grad())
                stack.enter_context(self._inner)
                for casts in self._casts:
                    stack.enter_context(casts)
                stack.enter_context(self._fp8_as_before())
                stack.enter_context(get_activation_recompute_contexts()[1])
                return self._function(*args, **kwargs)
        finally:
            now.restore()


class _CheckpointFunction(torch.autograd.Function):
    """Keeps the inputs only; the backward pass runs the function again, then its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., Any],
        shared: Any,
        tracker: Callable[[], Any] | None,
        contexts: Contexts | None,
        kwargs: dict[str, Any],
        *args: Any,
    ) -> Any:
        outer, inner = (nullcontext(), nullcontext()) if contexts is None else contexts()
        ctx.again = _Again(function, tracker, inner)
        ctx.kwargs, ctx.shared = kwargs, shared
        with torch.no_grad(), outer, get_activation_recompute_contexts()[0]:
            outputs = function(*args, **kwargs)
        if shared is not None:
            ctx.whole = args[0].shape
            args[0].data = _share(args[0].data, shared)
        ctx.others = [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        ctx.save_for_backward(*(arg if isinstance(arg, torch.Tensor) else None for arg in args))
        return without_parameters(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError(
                "Checkpointing is not compatible with .grad(), please use .backward() if possible"
            )
        args = [
            other if saved is None else saved.detach().requires_grad_(saved.requires_grad)
            for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        if ctx.shared is not None:
            first = ctx.saved_tensors[0]
            first.data = _gather(first.data, ctx.shared).view(ctx.whole)
            args[0] = first.detach().requires_grad_(first.requires_grad)
        outputs = ctx.again(args, ctx.kwargs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        if not pairs:
            raise RuntimeError(
                "none of output has requires_grad=True, this checkpoint() is not necessary"
            )
        torch.autograd.backward([one for one, _ in pairs], [one for _, one in pairs])
        inputs = (arg.grad if isinstance(arg, torch.Tensor) else None for arg in args)
        return (None, None, None, None, None, *inputs)


def _share(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of the tensor's elements, in memory of its own."""
    size = tensor.numel() // group.size()
    start = size * group.rank()
    return tensor.reshape(-1)[start : start + size].clone()


def _gather(part: torch.Tensor, group: Any) -> torch.Tensor:
    whole = part.new_empty(part.numel() * group.size())
    torch.distributed.all_gather_into_tensor(whole, part, group=group)
    return whole


def checkpoint_by_hooks(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    tracker: Callable[[], Any] | None = None,
    contexts: Contexts | None = None,
    second: Callable[..., Any] | None = None,
) -> Any:
    """Each saved tensor is a number until the backward pass needs the first of them.

    :param second: runs instead of ``function`` then; must save the same tensors.
    """
    outer, inner = (nullcontext(), nullcontext()) if contexts is None else contexts()
    again = _Again(second or function, tracker, inner)
    count = 0
    found: list[torch.Tensor | None] = []

    def pack(tensor: torch.Tensor) -> int:
        nonlocal count
        count += 1
        return count - 1

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.detach())
        return tensor.detach()

    def unpack(index: int) -> torch.Tensor:
        if not found:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                again(args, kwargs)
        tensor, found[index] = found[index], None
        assert tensor is not None, "a saved tensor of a checkpoint was asked for twice"
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    with hooks, get_activation_recompute_contexts()[0], outer:
        return function(*args, **kwargs)


def has_te_modules(network: object) -> bool:
    """Whether a module holds one of this library; True for anything that is no module."""
    if not isinstance(network, torch.nn.Module):
        return True
    root = __name__.partition(".")[0]
    return any(
        base.__module__.partition(".")[0] == root
        for kind in {type(module) for module in network.modules()}
        for base in kind.__mro__
    )


@no_torch_dynamo()
def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, whose activations are computed again in the backward pass.

    :param distribute_saved_activations: keep a part of the first argument on each rank of
        ``tp_group`` (default: all ranks); only with ``use_reentrant``.
    :param get_rng_state_tracker: returns a :class:`CudaRNGStatesTracker`, or None.
    :param use_reentrant: run a backward pass inside the backward pass (the default); else the
        saved tensors are recomputed when the first is needed.
    :param context_fn: as for ``torch.utils.checkpoint.checkpoint``.
    """
    global _reentrant
    _reentrant = kwargs.pop("use_reentrant", True)
    distribute = kwargs.pop("distribute_saved_activations", False)
    group = kwargs.pop("tp_group", None)
    tracker = kwargs.pop("get_rng_state_tracker", None)
    if len(args) > 3 and isinstance(args[0], bool) and callable(args[1]):
        warnings.warn(
            "Passing non-tensor non-keyword arguments is deprecated: "
            "`distribute_saved_activations`, `tp_group`, and `get_rng_state_tracker` must be "
            "passed as keyword arguments to `checkpoint`.",
            DeprecationWarning,
            stacklevel=2,
        )
        distribute, tracker, group = args[:3]
        args = args[3:]
    contexts: Contexts | None = kwargs.pop("context_fn", None)
    determinism = kwargs.pop("determinism_check", "default")
    debug = kwargs.pop("debug", False)
    if not has_te_modules(function):
        options: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}
        return torch_checkpoint(
            function,
            *args,
            use_reentrant=_reentrant,
            determinism_check=determinism,
            debug=debug,
            **options,
            **kwargs,
        )
    if not _reentrant:
        if distribute:
            warnings.warn(
                "`distribute_saved_activations=True` has no effect when `use_reentrant=False`",
                stacklevel=2,
            )
        return checkpoint_by_hooks(function, args, kwargs, tracker, contexts)
    shared = None
    if distribute:
        assert torch.distributed.is_initialized(), "torch.distributed is not initialized."
        shared = torch.distributed.group.WORLD if group is None else group
    return _CheckpointFunction.apply(  # type: ignore[no-untyped-call]
        function, shared, tracker, contexts, kwargs, *args
    )
