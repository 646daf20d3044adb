"""Helper functions of Transformer Engine's modules, and of those that build on them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from accel_bridge.kernels import active

from ._fp8_support import check_fp8_support
from ._nvtx import get_nvtx_range_context, nvtx_range_pop, nvtx_range_push
from ._split import SplitAlongDim, combine_tensors
from ._weak import make_weak_ref
from .quantized_tensor import QuantizedTensorStorage, Quantizer
from .torch_version import torch_version

__all__ = [
    "SplitAlongDim",
    "combine_tensors",
    "get_cudnn_version",
    "get_device_compute_capability",
    "get_nvtx_range_context",
    "is_bf16_available",
    "make_weak_ref",
    "nvtx_range_pop",
    "nvtx_range_push",
    "torch_version",
]

Tensors = torch.Tensor | None


def requires_grad(*tensors: Tensors) -> bool:
    """Whether any of ``tensors`` takes part in differentiation."""
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


@functools.cache
def _empty_tensor() -> torch.Tensor:
    """A tensor without elements, on the device."""
    return torch.empty(0, device="cuda")


def clear_tensor_data(*tensors: Any) -> None:
    """Release the memory of ``tensors``, whoever still refers to them."""
    for tensor in tensors:
        if tensor is None or hasattr(tensor, "_do_not_clear"):
            continue
        if isinstance(tensor, QuantizedTensorStorage):
            parts = tensor.get_data_tensors()
            if not any(hasattr(part, "_do_not_clear") for part in parts):
                tensor.clear()
            continue
        tensor.data = _empty_tensor()


def get_device_compute_capability() -> tuple[int, int]:
    """The current device's CUDA compute capability; (9, 0) on a host that computes in FP8.

    Callers ask for it to learn what the device can do, and 9.0 is the first that has FP8.
    """
    if active.features().tensors_on_host and check_fp8_support()[0]:
        return (9, 0)
    return _capability(torch.cuda.get_device_capability, torch.cuda.current_device())


@functools.lru_cache(maxsize=16)
def _capability(ask: Callable[[int], tuple[int, int]], device: int) -> tuple[int, int]:
    """What ``ask`` says of a device; asked some twenty times for every FP8 product."""
    return ask(device)


def attention_mask_func(
    attention_scores: torch.Tensor, attention_mask: torch.Tensor
) -> torch.Tensor:
    """Hide masked scores, in place."""
    return attention_scores.masked_fill_(attention_mask, -10000.0)


Init = Callable[[torch.Tensor], torch.Tensor]


def get_default_init_method() -> Init:
    """How weights are initialized unless the user says otherwise."""
    return init_method_normal(0.023)


def init_method_constant(val: float) -> Init:
    """Fill with ``val``."""
    return functools.partial(torch.nn.init.constant_, val=val)


def init_method_normal(sigma: float) -> Init:
    """Normally distributed around 0."""
    return functools.partial(torch.nn.init.normal_, mean=0.0, std=sigma)


def scaled_init_method_normal(sigma: float, num_layers: int) -> Init:
    """Normally distributed around 0, narrower the more layers there are."""
    return init_method_normal(sigma / math.sqrt(2.0 * num_layers))


def all_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """torch.allclose on the host."""
    return torch.allclose(a.cpu(), b.cpu())


def print_rank_0(*args: Any) -> None:
    """Print on the first device of a machine."""
    if torch.cuda.current_device() == 0:
        print(*args)


def compare_tensors(a: torch.Tensor, b: torch.Tensor) -> None:
    """Print how far ``a`` is from ``b``."""
    if a.shape != b.shape:
        print_rank_0("Tensors have different shape")
        return
    print_rank_0(a)
    print_rank_0(b)
    print_rank_0(f"max err={(a - b).abs().max()}, max a={a.max()}, max b={b.max()}")


def ensure_divisibility(numerator: int, denominator: int) -> None:
    """:raises AssertionError: a remainder."""
    assert numerator % denominator == 0, f"{numerator} is not divisible by {denominator}"


def divide(numerator: int, denominator: int) -> int:
    """Division without a remainder.

    :raises AssertionError: a remainder.
    """
    ensure_divisibility(numerator, denominator)
    return numerator // denominator


def split_tensor_along_dim(
    tensor: torch.Tensor, dim: int, num_partitions: int, contiguous_split_chunks: bool = False
) -> tuple[torch.Tensor, ...]:
    """Equal parts of ``tensor``."""
    parts = torch.split(tensor, divide(tensor.size(dim), num_partitions), dim=dim)
    return tuple(part.contiguous() for part in parts) if contiguous_split_chunks else parts


def validate_ctx_manager(ctx: Callable[[], Any]) -> None:
    """:raises ValueError: ``ctx`` makes no context manager."""
    try:
        with ctx():
            pass
    except Exception as error:
        raise ValueError("Object must be a valid ctx manager") from error


def validate_rng_states_func(get_rng_tracker: Callable[[], Any]) -> None:
    """Check that a tracker of random states has what parallel layers need.

    :raises AssertionError: it is no function, or a method is missing.
    :raises RuntimeError: it cannot be called.
    """
    assert callable(get_rng_tracker), "get_rng_tracker is not a valid function"
    try:
        tracker = get_rng_tracker()
    except Exception as error:
        raise RuntimeError("Cannot call get_rng_tracker function") from error
    for method in ("get_states", "set_states", "fork"):
        assert callable(getattr(tracker, method, None)), (
            f"rng_tracker object does not have valid method {method}"
        )
    validate_ctx_manager(tracker.fork)


def assert_viewless_tensor(tensor: Any, extra_msg: str | None = None) -> Any:
    """``tensor``, or the tensors of a list.

    :raises AssertionError: one is a view of another tensor.
    """
    if isinstance(tensor, list):
        return [assert_viewless_tensor(one) for one in tensor]
    if isinstance(tensor, torch.Tensor):
        assert tensor._base is None, (
            "a view keeps the memory of its base: its data cannot be replaced or put into a "
            f"memory buffer without a leak. {extra_msg}"
        )
    return tensor


def safely_set_viewless_tensor_data(tensor: torch.Tensor, new_data_tensor: torch.Tensor) -> None:
    """Replace the data of a tensor that is no view.

    :raises AssertionError: it is one.
    """
    base = None if tensor._base is None else tensor._base.shape
    message = f"The base has shape {base}, the new data {new_data_tensor.shape}."
    assert_viewless_tensor(tensor, message)
    tensor.data = new_data_tensor


def cast_if_needed(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """``tensor`` in ``dtype``, differentiable."""
    if tensor is None or tensor.dtype == dtype:
        return tensor
    with torch.enable_grad():
        return tensor.to(dtype=dtype)


def check_dim_for_fp8_exec(tensor: torch.Tensor) -> bool:
    """Whether FP8 products take a tensor of this shape."""
    return tensor.dim() == 2 and tensor.size(0) % 8 == 0 and tensor.size(1) % 16 == 0


def assert_dim_for_fp8_exec(*tensors: torch.Tensor) -> None:
    """:raises AssertionError: a shape that FP8 products do not take."""
    for tensor in tensors:
        fits = math.prod(tensor.shape[:-1]) % 8 == 0 and tensor.shape[-1] % 16 == 0
        assert fits, (
            "FP8 execution requires the product of all dimensions except the last to be divisible"
            " by 8 and the last dimension to be divisible by 16, but got tensor with"
            f" dims={list(tensor.size())}"
        )


def assert_dim_for_all_gather(
    tensor: torch.Tensor, with_all_gather: bool, quantizer: Quantizer
) -> None:
    """:raises AssertionError: a quantized gather would split blocks."""
    assert not with_all_gather or quantizer.is_quantizable(tensor), (
        f"All-gather requires quantizable tensor for quantizer {type(quantizer).__name__}"
    )


def is_bf16_compatible() -> bool:
    """Whether the device computes in bfloat16."""
    return torch.cuda.get_device_capability()[0] >= 8


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether the device computes in bfloat16, and why not."""
    available = is_bf16_compatible()
    if not return_reason:
        return available
    missing = "BF16 support requires a GPU with compute capability 8.0 or higher."
    return available, "" if available else missing


def is_non_tn_fp8_gemm_supported() -> bool:
    """Whether FP8 products read an operand by columns; else a transposed copy is kept."""
    capability = get_device_compute_capability()
    return (10, 0) <= capability < (12, 0) or capability >= (13, 0)


def get_cudnn_version() -> tuple[int, int, int]:
    """Major, minor and patch number of cuDNN; zeros without it."""
    encoded = int(torch.backends.cudnn.version() or 0)
    major, rest = divmod(encoded, 1000 if encoded < 90000 else 10000)
    return major, rest // 100, rest % 100


def canonicalize_device(device: torch.device | str | None) -> torch.device:
    """A device with its number; the current CUDA device for None."""
    if device is None:
        device = torch.get_default_device()
        if device.type != "cuda":
            return torch.device("cuda", torch.cuda.current_device())
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def canonicalize_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """``dtype``, or torch's default one."""
    return torch.get_default_dtype() if dtype is None else dtype


def devices_match(device1: torch.device, device2: torch.device) -> bool:
    """Whether both name the same device."""
    first, second = torch.device(device1), torch.device(device2)
    if first.type != second.type or first.type != "cuda":
        return first == second
    if first.index == second.index:
        return True
    here = torch.cuda.current_device()
    return (here if first.index is None else first.index) == (
        here if second.index is None else second.index
    )


def get_sm_count() -> int:
    """Multiprocessors of the current device."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(properties.multi_processor_count)


def round_up_to_nearest_multiple(value: int, multiple: int) -> int:
    """The least multiple that is not below ``value``.

    :raises ValueError: multiples of 0.
    """
    if multiple == 0:
        raise ValueError("multiple cannot be zero.")
    return -(-value // multiple) * multiple


def needs_quantized_gemm(obj: Any, rowwise: bool = True) -> bool:
    """Whether ``obj`` is anything but a plain tensor."""
    return type(obj) not in (torch.Tensor, torch.nn.Parameter)


def canonicalize_process_group(
    group: torch.distributed.ProcessGroup | None,
) -> torch.distributed.ProcessGroup:
    """``group``, or the group of all processes."""
    if group is None:
        return torch.distributed.distributed_c10d._get_default_group()
    return group


def torch_get_autocast_gpu_dtype() -> torch.dtype:
    """The dtype of torch's own autocast on the device."""
    return torch.get_autocast_dtype("cuda")


gpu_autocast_ctx = functools.partial(torch.amp.autocast, device_type="cuda")
