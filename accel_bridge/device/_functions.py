"""Functions of torch: those that make tensors, and those of torch.nn.functional that differ on the
device from what PyTorch documents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch
import torch.utils._device as _device_modes
from torch.nn import functional

from accel_bridge.device._context import Context, Part
from accel_bridge.device._devices import Sides
from accel_bridge.process import log


def functions(**own: Callable[..., torch.Tensor]) -> Part:
    """A part that sends tensors on the device through ``own`` functions, by their names."""

    def redirect(context: Context) -> None:
        for name, function in own.items():
            context.wrap(functional, name, _on_device(function, context.spec.type))

    return redirect


def _on_device(
    own: Callable[..., torch.Tensor], device_type: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            chosen = own if input.device.type == device_type else original
            return chosen(input, *args, **kwargs)

        return call

    return make


# GEMMs of float16 tensors on a device that is slow at them.

#: Functions whose first two tensors are multiplied: owner, name.
GEMMS: Final = (
    (torch, "matmul"),
    (torch, "bmm"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
    (torch.Tensor, "bmm"),
    (torch.nn.functional, "linear"),
)


def float16_matmuls_in(wide: torch.dtype) -> Part:
    """A part that computes float16 GEMMs in a wider dtype.

    The result is rounded to float16 once, as hardware with float32 accumulators does.
    """

    def redirect(context: Context) -> None:
        for owner, name in GEMMS:
            context.wrap(owner, name, lambda original: _widened(original, wide))

    return redirect


def _widened(original: Callable[..., torch.Tensor], wide: torch.dtype) -> Callable[..., Any]:
    def gemm(*tensors: Any, **options: Any) -> Any:
        # Options (out=, bias=) are rare; torch itself handles such calls.
        if not options and all(_is_half(tensor) for tensor in tensors):
            widened = (None if tensor is None else tensor.to(wide) for tensor in tensors)
            return original(*widened).to(torch.float16)
        return original(*tensors, **options)

    return gemm


def _is_half(tensor: Any) -> bool:
    """A float16 tensor, or the None of a missing bias."""
    return tensor is None or getattr(tensor, "dtype", None) is torch.float16


# The largest values of a tensor, with ties decided as CUDA decides them.
#
# Router scores in bfloat16 are often equal. Of equal values CUDA's ``topk`` takes the first ones,
# the host's takes any: tokens would go to other experts than on a GPU.

#: Longer rows, as of a vocabulary, are too slow to sort.
LONGEST: Final = 16_384


def first_of_equals(context: Context) -> None:
    """A part for the host: ``topk`` takes the first of equal values."""
    for owner in (torch, torch.Tensor):
        context.wrap(owner, "topk", _first)


def _first(original: Callable[..., Any]) -> Callable[..., Any]:
    def topk(
        input: torch.Tensor,
        k: int,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = True,
        **options: Any,
    ) -> Any:
        # A tracer's proxies are no tensors.
        if options or type(k) is not int or not isinstance(input, torch.Tensor):
            return original(input, k, dim, largest, sorted, **options)
        plain = input.dim() > 0 and input.device.type == "cpu"
        if not plain or not 0 < k <= input.shape[dim] <= LONGEST:
            return original(input, k, dim, largest, sorted, **options)
        values, indices = torch.sort(input, dim=dim, descending=largest, stable=True)
        first, places = (one.narrow(dim, 0, k).contiguous() for one in (values, indices))
        return torch.return_types.topk((first, places))

    return topk


# FlexAttention's gradients on the host: torch refuses them there, but computes them when it
# materializes the scores, which it does without torch.compile.

_MATERIALIZED: Final = (
    "FlexAttention trains on a CPU without torch.compile: each call holds its whole score matrix"
)


def materialized_flex_attention(context: Context) -> None:
    """A part for the host: ``flex_attention`` of tensors that need gradients is not refused."""

    def accept(module: ModuleType) -> None:
        context.wrap(module, "_validate_device", _unrefused)

    context.when_imported({"torch.nn.attention.flex_attention": accept})


def _unrefused(original: Callable[..., None]) -> Callable[..., None]:
    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        # Inductor's kernel for CPUs has no backward.
        if query.device.type != "cpu" or torch.compiler.is_dynamo_compiling():
            original(query, key, value)
        elif torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value)):
            log.warn_once(_MATERIALIZED)

    return validate


#: Functions that share memory with what they are given.
VIEWS: Final = ("as_tensor", "asarray")
#: Functions without a ``device`` keyword, whose result is the host's memory.
HOST_VIEWS: Final = ("frombuffer", "from_numpy")
#: Functions with a ``device`` keyword, by the module that holds them.
FACTORIES: Final[dict[str, tuple[str, ...]]] = {
    "torch": (
        "arange",
        "as_tensor",
        "asarray",
        "bartlett_window",
        "blackman_window",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_quantized",
        "empty_strided",
        "eye",
        "from_file",
        "full",
        "full_like",
        "hamming_window",
        "hann_window",
        "kaiser_window",
        "linspace",
        "logspace",
        "normal",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "randperm",
        "range",
        "scalar_tensor",
        "sparse_bsc_tensor",
        "sparse_bsr_tensor",
        "sparse_compressed_tensor",
        "sparse_coo_tensor",
        "sparse_csc_tensor",
        "sparse_csr_tensor",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
        "zeros_like",
    ),
    "torch.fft": ("fftfreq", "rfftfreq"),
    "torch.nested": ("as_nested_tensor", "nested_tensor"),
}


def redirect_factories(context: Context) -> None:
    """Make ``device="cuda"`` mean the device in every factory."""
    # torch fills its table with its own functions on first use. That must happen now, or it would
    # hold ours forever.
    _device_modes._device_constructors()
    for owner, names in (
        (torch, FACTORIES["torch"]),
        (torch.fft, FACTORIES["torch.fft"]),
        (torch.nested, FACTORIES["torch.nested"]),
    ):
        for name in names:
            make = _view_of if name in VIEWS else _factory
            context.wrap(owner, name, functools.partial(make, context=context))
    sides = context.sides
    if sides is not None:
        for name in HOST_VIEWS:
            context.wrap(torch, name, functools.partial(_on_host, sides=sides))
    context.wrap(
        _device_modes.DeviceContext, "__init__", lambda original: _device_mode(original, context)
    )


def _factory(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate = context.devices.translate
    drop_pin_memory = not context.spec.pinned_memory
    if context.sides is not None:
        return _factory_on_a_side(original, translate, context.sides)

    def factory(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        if drop_pin_memory and "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        return original(*args, **kwargs)

    return factory


def _factory_on_a_side(
    original: Callable[..., Any], translate: Callable[[Any], Any], sides: Sides
) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else kwargs.get("data", kwargs.get("input"))
        pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if device is not None:
            target = sides.named(device)
            kwargs["device"] = translate(device)
        elif isinstance(data, torch.Tensor):
            target = sides.like(data)
        else:
            target = sides.default()
        result = original(*args, **kwargs)
        if target is None or target == "elsewhere" or "out" in kwargs:
            return result
        sides.mark(result, "pinned" if pinned and target == "host" else target)
        return result

    return factory


def _view_of(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """``as_tensor`` and ``asarray``, which share memory with what is given, unless it crosses."""
    translate, sides = context.devices.translate, context.sides
    if sides is None:
        return _factory(original, context)

    def view(data: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        is_tensor = isinstance(data, torch.Tensor)
        if device is None:
            target = sides.like(data) if is_tensor else sides.default()
        else:
            target = sides.named(device)
            kwargs["device"] = translate(device)
        result = original(data, **kwargs)
        if is_tensor:
            return result if device is None else sides.moved(data, result, target)
        # Lists have no memory to share.
        shared = result if target != "host" and not isinstance(data, (list, tuple)) else None
        return sides.moved(shared, result, target)

    return view


def _on_host(original: Callable[..., Any], sides: Sides) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = original(*args, **kwargs)
        sides.mark(result, "host")
        return result

    return make


def _device_mode(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """``with torch.device("cuda")`` and ``torch.set_default_device("cuda")``."""
    translate = context.devices.translate

    def __init__(self: Any, device: Any) -> None:
        original(self, translated := translate(device))
        if isinstance(translated, torch.device):
            self.device = translated  # the object itself, which tells a side

    return __init__
