"""Values of fake tensors, as far as they can be known.

Fake tensors have shapes and no values; a training reads some: how many tokens each expert gets, how
long each packed sequence is. What follows from constants and from the data is computed beside the
fake tensors, on the host. What a router would choose is taken as balanced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_map

aten: Final = torch.ops.aten
#: The largest tensor whose values are followed.
LIMIT: Final = 2**22
NAME: Final = "_rehearsed_value"
_SENDER: Final = "_rehearsed_sender"

#: Constants whatever their input holds.
_LIKE: Final = frozenset(
    {
        *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
        *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
    }
)
#: Every number is taken as finite: the answer, or None for an operation that leaves its flag.
_FINITE: Final = {
    aten.isnan.default: False,
    aten.isinf.default: False,
    aten._amp_foreach_non_finite_check_and_unscale_.default: None,
}
#: Never followed: memory without values, random numbers.
_UNKNOWN: Final = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "rand"),
        *("randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "bernoulli_"),
        *("uniform_", "normal_", "normal", "native_dropout", "random_", "exponential_"),
        *("multinomial", "trunc_normal_", "resize_", "set_"),
    }
)
#: The last choice of columns: the shape of its scores -> its indices.
_last: Final[dict[torch.Size, torch.Tensor]] = {}


class Value:
    """A tensor's values; ``cell[0]`` is False once something unknown was written to its memory."""

    __slots__ = ("cell", "tensor")

    def __init__(self, tensor: torch.Tensor, cell: list[bool]) -> None:
        self.tensor, self.cell = tensor, cell


def known(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a tensor on the host, or None."""
    if not isinstance(tensor, FakeTensor):
        return tensor if tensor.device.type == "cpu" and tensor.numel() <= LIMIT else None
    value: Value | None = tensor.__dict__.get(NAME)
    return value.tensor if value is not None and value.cell[0] else None


def give(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """State the values of a fake tensor."""
    tensor.__dict__[NAME] = Value(value, [True])


def came_from(tensor: torch.Tensor, rank: int) -> None:
    """Nobody knows its values here, but that rank does."""
    tensor.__dict__[_SENDER] = rank


def sender(tensor: torch.Tensor) -> int | None:
    """The rank that knows the values of a tensor, or of what it was made of."""
    return tensor.__dict__.get(_SENDER)


def _on_host(value: Any) -> Any:
    """An argument of an operation as the host's operation takes it."""
    if isinstance(value, torch.Tensor):
        return known(value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def follow(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Compute ``func`` on the host too, where all that it reads is known."""
    if func in _FINITE:
        if (fill := _FINITE[func]) is not None and out.numel() <= LIMIT:
            with unset_fake_temporarily():
                give(out, torch.full(out.shape, fill))
        return
    first = args[0] if args else None
    if type(first) is FakeTensor and _SENDER in first.__dict__ and isinstance(out, FakeTensor):
        came_from(out, first.__dict__[_SENDER])
    if type(first) is FakeTensor and NAME not in first.__dict__ and func not in _LIKE:
        if func is aten.topk.default:
            _choose_evenly(args, out)
        return
    if func._schema.name.partition("::")[2] in _UNKNOWN or func.namespace != "aten":
        _forget(func, args, kwargs)
        return
    leaves, _ = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    outs = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]
    if not outs or sum(one.numel() for one in outs) > LIMIT:
        _forget(func, args, kwargs)
        return
    if func in _LIKE:
        _make_like(func, args, kwargs, outs[0])
        return
    if any(known(one) is None for one in tensors):
        _forget(func, args, kwargs)
        return
    cells = [one.__dict__[NAME].cell for one in tensors if NAME in one.__dict__]
    try:
        with unset_fake_temporarily(), torch.no_grad():
            host_args, host_kwargs = tree_map(_on_host, (tuple(args), dict(kwargs)))
            host_kwargs.pop("pin_memory", None)
            result = func(*host_args, **host_kwargs)
    except Exception:
        _forget(func, args, kwargs)
        return
    results = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
    # A view shares the fate of what it is a view of.
    cell = cells[0] if cells and (func.is_view or _writes(func)) else [True]
    for one, real in zip(outs, results, strict=False):
        if isinstance(one, FakeTensor) and one.shape == real.shape:
            one.__dict__[NAME] = Value(real, cell)


def _make_like(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: torch.Tensor) -> None:
    name = func._schema.name.partition("::")[2]
    fill: Any = 0 if "zeros" in name else 1 if "ones" in name else args[-1]
    if isinstance(out, FakeTensor) and isinstance(fill, (int, float, bool)):
        with unset_fake_temporarily():
            give(out, torch.full(out.shape, fill, dtype=out.dtype))


def _writes(func: Any) -> bool:
    return bool(func._schema.is_mutable)


def _forget(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Something unknown was written: the memory's values are known no more."""
    if not _writes(func):
        return
    for schema, value in zip(func._schema.arguments, args, strict=False):
        if schema.alias_info is not None and schema.alias_info.is_write:
            forget(value)
    for schema in func._schema.arguments:
        if schema.name in kwargs and schema.alias_info is not None and schema.alias_info.is_write:
            forget(kwargs[schema.name])


def forget(value: Any) -> None:
    """Tensors that something unknown was written to."""
    for leaf in tree_flatten(value)[0]:
        if isinstance(leaf, FakeTensor) and (found := leaf.__dict__.get(NAME)) is not None:
            found.cell[0] = False


def _choose_evenly(args: Sequence[Any], out: Any) -> None:
    """``topk`` of unknown scores: row after row takes the next k columns, so each has as many.

    Along another dimension, as experts choose among the tokens that chose them: the rows of the
    last choice of columns come first.
    """
    scores, indices = args[0], out[1]
    k, dim = args[1], (args[2] if len(args) > 2 else -1) % max(scores.dim(), 1)
    columns = dim == scores.dim() - 1
    if (indices if columns else scores).numel() > LIMIT or k == 0:
        return
    with unset_fake_temporarily():
        if columns:
            even = (torch.arange(indices.numel()) % scores.shape[-1]).view(indices.shape)
            give(indices, even)
            _last.clear()
            _last[scores.shape] = even
            return
        taken = torch.zeros(scores.shape, dtype=torch.int8)
        if scores.shape in _last:
            taken.scatter_(-1, _last[scores.shape], 1)
        order = torch.argsort(taken, dim=dim, descending=True, stable=True)
        give(indices, order.narrow(dim, 0, k))


def shape_by_values(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operation whose shape depends on values, with zeros for unknown inputs.

    A mask that nobody knows lets everything through.

    :returns: real tensors on the host, from which shapes and known values are taken; None if the
        values that decide the shape are unknown.
    """
    leaves, _ = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = [one for one in tensors if not one.dtype.is_floating_point]
    if not numbers or any(known(one) is None for one in numbers if one.dtype != torch.bool):
        return None

    def real(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found = known(value)
            if found is None:
                fill = torch.ones if value.dtype == torch.bool else torch.zeros
                return fill(value.shape, dtype=value.dtype)
            return found
        return torch.device("cpu") if isinstance(value, torch.device) else value

    with unset_fake_temporarily(), torch.no_grad():
        host_args, host_kwargs = tree_map(real, (tuple(args), dict(kwargs)))
        return func(*host_args, **host_kwargs)


def address(storage: Any) -> int:
    """Where a fake tensor's memory would be: another place for each, aligned."""
    return int(storage._cdata) * 512 % 2**62


def isfinite(tensor: torch.Tensor) -> torch.Tensor:
    """Every number is finite; torch's own function is made of operations that say less."""
    return torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)


def assume(tensor: torch.Tensor) -> torch.Tensor:
    """Values for a program that reads some that nobody knows; from now on they are the tensor's.

    The loss is 1, a count is 1, a flag is not set.
    """
    with unset_fake_temporarily():
        value = torch.full(tensor.shape, tensor.dtype != torch.bool, dtype=tensor.dtype)
    if isinstance(tensor, FakeTensor):
        give(tensor, value)
    return value


def install(read: Callable[[torch.Tensor], None]) -> None:
    """Let ``tolist`` and ``numpy`` of fake tensors answer; ``read`` hears of unknown values."""

    def host(self: FakeTensor) -> torch.Tensor:
        found = known(self)
        if found is None:
            read(self)
            found = assume(self)
        return found

    def tolist(self: FakeTensor) -> Any:
        found = host(self)
        with unset_fake_temporarily():
            return found.tolist()

    def numpy(self: FakeTensor, *, force: bool = False) -> Any:
        found = host(self)
        with unset_fake_temporarily():
            return found.detach().clone().numpy()

    def data_ptr(self: FakeTensor) -> int:
        offset = int(self.storage_offset()) * self.element_size()
        return address(self.untyped_storage()) + offset

    for function in (tolist, numpy, data_ptr):
        setattr(FakeTensor, function.__name__, function)
