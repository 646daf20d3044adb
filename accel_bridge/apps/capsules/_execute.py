"""Run one operator of a capsule again, as it was recorded or in a higher precision.

A capsule may be from a stranger: it names operators and holds numbers. Only operators of
:data:`PRIVATE` and PyTorch's public ones that touch nothing but tensors are run, and no result is
larger than the file says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_flatten, tree_map_only

from accel_bridge import kernels
from accel_bridge.recording import Operator, Value

#: Operators that PyTorch calls private and that training runs.
PRIVATE: Final = frozenset(
    {
        *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
        *("_to_copy", "_unsafe_view", "_reshape_alias", "_conj", "_neg_view"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        *("_foreach_add_", "_foreach_mul_", "_foreach_mul", "_foreach_add", "_foreach_norm"),
        *("_foreach_copy_", "_foreach_sqrt", "_foreach_div_", "_foreach_addcdiv_"),
        *("_foreach_addcmul_", "_foreach_lerp_", "_fused_adamw_", "_fused_adam_"),
    }
)
#: Public ones that do more than compute, or read memory by numbers in the file.
_REFUSED: Final = frozenset(
    {"from_file", "set_", "resize_", "resize_as_", "as_strided", "as_strided_", "record_stream"}
)
#: Their results are drawn: what was recorded is taken as it is.
_DRAWN: Final = (
    *("rand", "normal_", "bernoulli", "dropout", "uniform_", "exponential_", "multinomial"),
)
_OWN_DRAW: Final = "its results are drawn, by a generator that no other device has"
_MISSING: Final = "the file does not hold all that it read"
#: Most elements of a result.
_LARGEST: Final = 1 << 28
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Dataclasses that contracts take.
_OPTIONS: Final[Mapping[str, Any]] = {
    one.__name__: one
    for one in (kernels.AdamWOptions, kernels.AttentionMask, kernels.AttentionOptions)
}


class NotReplayable(Exception):
    """An operator that cannot be run here; the text says why."""


def tensor_of(value: Value) -> torch.Tensor | None:
    """The tensor that a value is, where the file has all of it."""
    if value.data is None:
        return None
    dtype = getattr(torch, value.dtype)
    if not value.data:
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).view(value.shape)


def execute(
    operator: Operator,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[Value],
    precision: torch.dtype | None = None,
    kernel: Any = None,
) -> list[torch.Tensor]:
    """The results of an operator: what it returns, then what it changes.

    :param inputs: the tensors that it read, None for those that it only writes.
    :param outputs: what the file says of the results.
    :param precision: compute in this; None: in the dtypes that were recorded.
    :param kernel: runs a contract instead of its reference.
    :raises NotReplayable: it cannot be run.
    """
    if any(math.prod(value.shape) > _LARGEST for value in outputs):
        raise NotReplayable("its results are too large")
    tensors = [None if one is None else _in(one, precision) for one in inputs]
    try:
        if operator.name.startswith("aten."):
            return _aten(operator, tensors, outputs, precision)
        if operator.name.startswith("c10d."):
            raise NotReplayable("a collective needs what the other ranks sent")
        return _contract(operator, tensors, precision, kernel)
    except NotReplayable:
        raise
    except Exception as error:  # whatever an operator raises for what a file says
        raise NotReplayable(" ".join(f"{type(error).__name__}: {error}".split())[:200]) from error


def _in(tensor: torch.Tensor, precision: torch.dtype | None) -> torch.Tensor:
    wide = precision is not None and tensor.dtype in _FLOATS
    return tensor.to(precision if wide else tensor.dtype, copy=True)


def _aten(
    operator: Operator,
    tensors: list[torch.Tensor | None],
    outputs: Sequence[Value],
    precision: torch.dtype | None,
) -> list[torch.Tensor]:
    _, name, overload = operator.name.split(".")
    if name in _REFUSED or (name.startswith("_") and name not in PRIVATE):
        raise NotReplayable(f"{operator.name} is not among the operators that are run again")
    if name == "native_dropout":
        input, probability, *_ = _decoded(operator.arguments, tensors, precision)[0]
        return _dropped(input, probability, outputs[-1])
    if any(word in name for word in _DRAWN):
        raise NotReplayable(_OWN_DRAW)
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or overload not in packet.overloads():
        raise NotReplayable(f"this PyTorch has no {operator.name}")
    func = getattr(packet, overload)
    args, kwargs = _decoded(operator.arguments, tensors, precision)
    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    if given.get("dropout_p"):
        raise NotReplayable(_OWN_DRAW)
    _check_sizes(func, args, kwargs, outputs)
    with torch.no_grad():
        return _results(func(*args, **kwargs), operator, tree_flatten((args, kwargs))[0])


def _dropped(input: torch.Tensor, probability: float, mask: Value) -> list[torch.Tensor]:
    """Dropout with the mask that was drawn."""
    kept = tensor_of(mask)
    if kept is None or kept.shape != input.shape:
        raise NotReplayable(_MISSING)
    return [input * kept * (1 / (1 - probability)), kept]


def _results(result: Any, operator: Operator, given: Sequence[Any]) -> list[torch.Tensor]:
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    touched = [tensors[place] for place in operator.changed]
    found = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]
    return [*(one for one in found if not any(one is other for other in touched)), *touched]


def _check_sizes(func: Any, args: Any, kwargs: Any, outputs: Sequence[Value]) -> None:
    """No result is larger than the file says: shapes alone are computed first."""
    with FakeTensorMode() as mode:
        fake = tree_map_only(torch.Tensor, mode.from_tensor, (list(args), dict(kwargs)))
        try:
            result = func(*fake[0], **fake[1])
        except DynamicOutputShapeException:
            return
    most = max((math.prod(value.shape) for value in outputs), default=0)
    made = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]
    if any(one.numel() > most for one in made):
        raise NotReplayable("its results are larger than the file says")


def _contract(
    operator: Operator,
    tensors: list[torch.Tensor | None],
    precision: torch.dtype | None,
    kernel: Any,
) -> list[torch.Tensor]:
    name, backward = operator.name.removesuffix(".backward"), operator.name.endswith(".backward")
    contract = kernels.CONTRACTS.get(name)
    if contract is None:
        raise NotReplayable(f"there is no kernel contract {name!r}")
    function = contract.reference if kernel is None else kernel
    arguments = operator.arguments[:2]
    if not backward:
        args, kwargs = _decoded(arguments, tensors, precision)
        _check_drawn(args)
        with torch.no_grad():
            result = function(*args, **kwargs)
        flat = _flat((args, kwargs))
        touched = [flat[place] for place in operator.changed]
        found = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]
        return [*(one for one in found if not any(one is other for other in touched)), *touched]
    arriving, leaving = operator.arguments[2:] or ([], [])
    count = len(tensors) - len(arriving)
    for place in leaving:
        tensor = tensors[place]
        if tensor is None:
            raise NotReplayable(_MISSING)
        tensor.requires_grad_()
    args, kwargs = _decoded(arguments, tensors[:count], precision)
    _check_drawn(args)
    with torch.enable_grad():
        result = function(*args, **kwargs)
    outputs = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]
    gradients = torch.autograd.grad(
        [outputs[place] for place in arriving],
        [tensor for place in leaving if (tensor := tensors[place]) is not None],
        [
            tensor.to(outputs[place].dtype)
            for place, tensor in zip(arriving, tensors[count:], strict=True)
            if tensor is not None
        ],
    )
    return list(gradients)


def _check_drawn(args: Sequence[Any]) -> None:
    if any(getattr(one, "dropout", 0.0) for one in args):
        raise NotReplayable(_OWN_DRAW)


def _flat(value: Any) -> list[torch.Tensor]:
    """The tensors of arguments in the order in which the tape wrote them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [one for item in value.values() for one in _flat(item)]
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in _flat(item)]
    if type(value) in _OPTIONS.values():
        return [one for name in value.__dataclass_fields__ for one in _flat(getattr(value, name))]
    return []


def _decoded(
    arguments: Any, tensors: Sequence[torch.Tensor | None], precision: torch.dtype | None
) -> tuple[list[Any], dict[str, Any]]:
    def decoded(value: Any) -> Any:
        if isinstance(value, list):
            return [decoded(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "e" in value:
            dtype, shape = value["e"]
            if math.prod(shape) > _LARGEST:
                raise NotReplayable("it writes too large a tensor")
            return torch.zeros(shape, dtype=_dtype(dtype, precision))
        if "t" in value:
            tensor = tensors[value["t"]]
            if tensor is None:
                raise NotReplayable(_MISSING)
            return tensor
        if "k" in value:
            return _OPTIONS[value["k"]](**{k: decoded(one) for k, one in value["f"].items()})
        if "d" in value:
            return _dtype(value["d"], precision)
        if "g" in value and len(value["g"]) == 1:
            return None
        if "g" in value:
            raise NotReplayable("it needs what the other ranks have")
        raise NotReplayable(f"an argument of a kind that no file holds: {str(value.get('x'))[:80]}")

    positional, named = arguments
    kept = {
        name: value
        for name, value in named.items()
        # Devices, layouts and memory formats are the recorded machine's.
        if name not in ("device", "layout", "memory_format", "pin_memory", "non_blocking")
    }
    return [decoded(one) for one in positional], {k: decoded(one) for k, one in kept.items()}


def _dtype(name: str, precision: torch.dtype | None) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise NotReplayable(f"there is no dtype {str(name)[:40]!r}")
    return precision if precision is not None and dtype in _FLOATS else dtype
