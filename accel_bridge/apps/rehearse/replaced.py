"""What a rehearsal puts in the place of functions of torch's that want memory, values or peers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from accel_bridge.apps.rehearse import values
from accel_bridge.apps.rehearse.devices import MIB, TYPE


def place(kwargs: dict[str, Any]) -> tuple[int, int]:
    """(rank, world size) of ``init_process_group``'s arguments or of the environment."""
    rank, world = kwargs.get("rank", -1), kwargs.get("world_size", -1)
    rank = int(os.environ.get("RANK", "0")) if rank is None or rank < 0 else rank
    world = int(os.environ.get("WORLD_SIZE", "1")) if world is None or world < 0 else world
    return rank, world


def wrapper(*args: Any, **kwargs: Any) -> Any:
    """``Tensor._make_wrapper_subclass``, below the redirection, which takes numbers away.

    Autograd has a queue of the first device, and none of a quantized parameter's without a number.
    """
    device = kwargs.get("device")
    if isinstance(device, int) or (device and torch.device(device).type in (TYPE, "cuda")):
        kwargs["device"] = f"{TYPE}:0"
    return torch._C.TensorBase._make_wrapper_subclass(*args, **kwargs)


def apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Module._apply``: a parameter that leaves the meta device is a new one, as without fakes."""

    @functools.wraps(original)
    def _apply(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        own = module._parameters.items()
        before = [(name, one) for name, one in own if one is not None and one.is_meta]
        result = original(module, *args, **kwargs)
        for name, one in before:
            if one.is_meta or module._parameters[name] is not one:
                continue
            made, left = (
                torch.nn.Parameter(tensor, requires_grad=one.requires_grad)
                for tensor in (one.detach(), torch.empty_like(one, device="meta"))
            )
            swap(one, left)
            module._parameters[name] = made
        return result

    return _apply


def dispatch(original: Callable[..., Any]) -> Any:
    """Quantized tensors call it for one of their parts, and name their own type.

    A part that is not fake would do the operation, and so does this.
    """

    def run(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, FakeTensor) for one in types):
            return original(func, types, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    return classmethod(run)


def reduce(fake: FakeTensor, protocol: Any) -> tuple[Any, ...]:
    """Pickled, as Transformer Engine does its scales for a checkpoint: its bytes are zeros."""
    size = fake.numel() * fake.element_size()
    return _unpickled, (tuple(fake.shape), fake.dtype, fake.device, bytes(min(size, MIB)))


def _unpickled(shape: tuple[int, ...], dtype: Any, device: Any, content: bytes) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def nothing(*args: Any, **kwargs: Any) -> None:
    """Nobody is waited for."""


def swap(left: torch.Tensor, right: torch.Tensor) -> None:
    """``Module.to`` of fake parameters; torch's own refuses weak references, which fakes have."""
    # Quantized tensors answer with a new storage of their device, which nobody has.
    storage = torch._C.TensorBase.untyped_storage
    if storage(left)._cdata == storage(right)._cdata:
        return
    # What torch does, without its look at weak references.
    left.__class__, right.__class__ = right.__class__, left.__class__
    # ... but the attributes that frameworks set on parameters stay, as when data is set.
    own = {name: value for name, value in left.__dict__.items() if name != values.NAME}
    left.__dict__ = {**own, **right.__dict__}
    torch._C._swap_tensor_impl(left, right)


def really(original: Callable[..., Any]) -> Callable[..., Any]:
    """What needs values and no device: loading data, meshes of ranks."""

    def real(value: Any) -> Any:
        if isinstance(value, FakeTensor) and (found := values.known(value)) is not None:
            return found
        return value

    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            given = {name: real(value) for name, value in kwargs.items()}
            return original(*map(real, args), **given)

    return functools.wraps(original)(call)


def address(original: Callable[..., int]) -> Callable[..., int]:
    def data_ptr(storage: Any) -> int:
        if storage.device.type == "meta":
            return values.address(storage)
        return original(storage)

    return data_ptr


def from_fakes(original: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor of a list of fake numbers: torch reads them where no mode hears of it.

    One of a file's bytes (safetensors) is real: fake tensors have no storage of the host's. The
    fake mode asks torch to make the others on the host and to move them by an operator, but asks in
    its own thread; autograd's has not heard of it.
    """
    asked, ask = torch._C._only_lift_cpu_tensors, torch._C._set_only_lift_cpu_tensors

    def make(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.UntypedStorage):
            with unset_fake_temporarily():
                return original(*args, **kwargs)
        args = tuple(_numbers(one) if isinstance(one, (list, tuple)) else one for one in args)
        before = asked()
        ask(True)
        try:
            return original(*args, **kwargs)
        finally:
            ask(before)

    return functools.wraps(original)(make)


def _numbers(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_numbers(one) for one in value]
    return value.tolist() if isinstance(value, FakeTensor) else value


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What torch chooses on a GPU: FlashAttention in half precision without a mask and with heads
    of one width, else the memory-efficient kernel.
    """
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(times, -3) for one in (key, value))
    width = query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    if attn_mask is None and half and query.dim() == 4 and value.shape[-1] == width:
        pad = -width % 8
        if pad:
            query, key, value = (
                torch.nn.functional.pad(one, (0, pad)) for one in (query, key, value)
            )
        out = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale or width**-0.5
        )[0]
        return cast(torch.Tensor, out[..., :width])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -1e9)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    results = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )
    return cast(torch.Tensor, results[0])


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """A kernel that torch.compile would make: it keeps what FlashAttention keeps, and computes the
    tiles of its mask.
    """
    window = key.shape[-2]
    if block_mask is not None and values.known(block_mask.kv_num_blocks) is not None:
        window = round(window * (1 - block_mask.sparsity() / 100))
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    sizes = None, None, query.shape[1], key.shape[1]
    band = {"window_size_left": window - 1, "window_size_right": 0}
    flash = torch.ops.aten._flash_attention_forward
    out = flash(query, key, value, *sizes, 0.0, False, False, scale=scale, **band)[0]
    return cast(torch.Tensor, out.transpose(1, 2))


# --- object collectives: every rank would say the same -------------------------------------------


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter_object_list(
    output: list[Any], given: list[Any] | None = None, *args: Any, **kwargs: Any
) -> None:
    if given:
        output[0] = given[0]


OBJECTS: Final[dict[str, Callable[..., Any]]] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "scatter_object_list": _scatter_object_list,
    "broadcast_object_list": nothing,
}
