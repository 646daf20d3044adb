"""Every operator of a capsule, run again, against the float64 reference of the same inputs.

A capsule may be from a stranger: it names operators and holds numbers. Only operators of
:data:`PRIVATE` and PyTorch's public ones that touch nothing but tensors are run, and no result is
larger than the file says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_flatten, tree_map_only

from accel_bridge import kernels
from accel_bridge.recording import Capsule, Operator, Value
from accel_bridge.recording.tape import content

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
        return _results(result, operator, _flat((args, kwargs)))
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


#: How many times the error of plain PyTorch in the recorded precision an operator may have.
FORWARD: Final = 3.0
BACKWARD: Final = 4.0
#: Share of a result's size that is forgiven in any precision: another order of summation.
FLOOR: Final = 2.0**-20
#: A result that is smaller than its terms by this cannot be judged.
_CANCELS: Final = 0.25
#: Operators that move numbers and compute none.
_MOVES: Final = frozenset(
    "view _unsafe_view t transpose permute expand unsqueeze squeeze slice select split "
    "split_with_sizes cat".split()
)
#: Operators whose whole numbers depend on the order of equal values.
_ORDERS: Final = ("topk", "sort", "argsort", "argmax", "argmin", "max", "min")


@dataclass(frozen=True, slots=True)
class Finding:
    """One operator that departs from its reference.

    :param rank: of the run.
    :param place: among the rank's operators.
    :param output: which of its results.
    :param error: largest difference, relative to the root mean square of the reference.
    :param allowed: what the recorded precision explains.
    :param recorded: the recorded value where the difference is largest.
    :param exact: the reference's value there.
    """

    rank: int
    place: int
    operator: Operator
    output: int
    error: float
    allowed: float
    recorded: float
    exact: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """A capsule's operators, judged.

    :param findings: operators that depart, in the order in which they ran.
    :param judged: how many were.
    :param skipped: reason -> how many could not be.
    :param parts: how many of those judged were on some rows only.
    :param sums: results of these that are sums over all rows, which no part has.
    """

    findings: tuple[Finding, ...]
    judged: int
    skipped: dict[str, int]
    parts: int = 0
    sums: int = 0


Kernels = Callable[[str], Any]


def judge(capsule: Capsule, kernels: Kernels | None = None) -> Judgement:
    """Compare every operator with its reference, rank by rank, in the order in which they ran.

    :param kernels: contract -> kernel of this machine's backend; its results are then judged
        instead of the recorded ones.
    """
    findings: list[Finding] = []
    skipped: dict[str, int] = {}
    judged = parts = sums = 0
    for rank, operators in enumerate(capsule.ranks):
        tensors = _Tensors(capsule)
        for place in range(len(operators)):
            part = _part(capsule, operators[place])
            try:
                finding = _one(capsule, tensors, rank, place, part, kernels)
                judged += 1
                parts += part is not operators[place]
                sums += part.outputs.count(-1)
            except NotReplayable as reason:
                moved = moves(part) and "does not hold" in str(reason)
                why = "too large, and only moves numbers" if moved else str(reason)
                skipped[why] = skipped.get(why, 0) + 1
                continue
            if finding is not None:
                findings.append(finding)
                break  # what comes after it is a consequence
    findings.sort(key=lambda one: one.place)
    return Judgement(tuple(findings), judged, skipped, parts, sums)


def moves(operator: Operator) -> bool:
    """Whether it computes nothing."""
    return operator.name.startswith("aten.") and operator.name.split(".")[1] in _MOVES


def _part(capsule: Capsule, operator: Operator) -> Operator:
    """The operator, on some rows where the file does not hold all."""
    if _is_whole(capsule, operator) or not operator.part_inputs:
        return operator
    return replace(operator, inputs=operator.part_inputs, outputs=operator.part_outputs)


def _is_whole(capsule: Capsule, operator: Operator) -> bool:
    needed = (*operator.inputs, *operator.outputs)
    return all(capsule.values[one].data is not None for one in needed if one >= 0)


class _Tensors:
    """Values as tensors.

    What the file does not hold may be what an earlier operator gives here: the digest tells.
    """

    def __init__(self, capsule: Capsule) -> None:
        self._values = capsule.values
        self._made: dict[int, torch.Tensor] = {}

    def get(self, index: int) -> torch.Tensor | None:
        """The tensor, or None."""
        found = tensor_of(self._values[index])
        return self._made.get(index) if found is None else found

    def keep(self, outputs: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        """Remember what an operator gave, where the file does not hold it."""
        for index, tensor in zip(outputs, tensors, strict=False):
            value = self._values[index]
            if index >= 0 and value.data is None and content(tensor)[2] == value.digest:
                self._made[index] = tensor


def _one(
    capsule: Capsule,
    tensors: _Tensors,
    rank: int,
    place: int,
    operator: Operator,
    kernels: Kernels | None,
) -> Finding | None:
    outputs = [capsule.values[index] for index in operator.outputs if index >= 0]
    if operator.name.startswith("c10d."):
        try:
            plain, exact = _collective(capsule, tensors, rank, place)
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise NotReplayable(f"a collective that makes no sense: {error}") from error
    else:
        inputs = [None if index < 0 else tensors.get(index) for index in operator.inputs]
        plain = execute(operator, inputs, outputs)
        tensors.keep(operator.outputs, plain)
        recorded = [
            (tensors.get(index), other)
            for index, other in zip(operator.outputs, plain, strict=False)
            if index >= 0
        ]
        if kernels is None and all(one is not None and _same(one, two) for one, two in recorded):
            # The same bits as plain PyTorch here: nothing can be further off than itself.
            return None
        exact = execute(operator, inputs, outputs, torch.float64)
    results = [None if index < 0 else tensors.get(index) for index in operator.outputs]
    if kernels is not None and "c10d" not in operator.name and "aten" not in operator.name:
        served = kernels(operator.name.removesuffix(".backward"))
        results = list(execute(operator, inputs, outputs, kernel=served))
    if len(plain) != len(results):
        raise NotReplayable("it returns another number of tensors here")
    limit = BACKWARD if operator.phase == "backward" else FORWARD
    for number, (found, near, true) in enumerate(zip(results, plain, exact, strict=True)):
        if operator.outputs[number] < 0:
            continue
        if found is None:
            raise NotReplayable("the file does not hold its result")
        if not found.is_floating_point() and any(word in operator.name for word in _ORDERS):
            continue
        measured = far(found, near, true, limit)
        if measured is not None:
            return Finding(rank, place, operator, number, *measured)
    return None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)


def far(
    found: torch.Tensor, near: torch.Tensor, true: torch.Tensor, limit: float
) -> tuple[float, float, float, float] | None:
    """(error, allowed, value, exact value) where ``found`` is further off than allowed."""
    if found.shape != near.shape:
        return math.inf, 0.0, math.nan, math.nan
    if found.numel() == 0:
        return None
    if not found.is_floating_point():
        differs = found.double() != near.double()
        if not bool(differs.any()):
            return None
        where = int(differs.reshape(-1).to(torch.uint8).argmax())
        return math.inf, 0.0, float(found.reshape(-1)[where]), float(near.reshape(-1)[where])
    ours, plain, exact = (_wide(one).reshape(-1) for one in (found, near, true))
    finite = exact.abs() <= torch.finfo(found.dtype).max
    same = (ours == exact) | (ours.isnan() & exact.isnan()) | ~finite
    error = (ours - exact).abs().masked_fill(same, 0.0).nan_to_num(math.inf, math.inf)
    base = (plain - exact).abs().masked_fill(~finite, 0.0).nan_to_num(0.0)
    clean = exact.masked_fill(~finite, 0.0).nan_to_num(0.0)
    size = float(clean.square().mean().sqrt())
    if float(base.max()) > _CANCELS * float(clean.abs().max()):
        return None
    unit = torch.finfo(found.dtype).eps / 2
    root, plain_root = (float(one.square().mean().sqrt()) for one in (error, base))
    allowed = limit * plain_root + FLOOR * size
    most = limit * float(base.max()) + (unit + FLOOR) * float(clean.abs().max())
    # A wrong factor moves the mean square, one wrong element the largest.
    if root <= allowed + (unit * size if plain_root else 0.0) * 0.5 and float(error.max()) <= most:
        return None
    where = int(error.argmax())
    return root / (size or 1.0), allowed / (size or 1.0), float(ours[where]), float(exact[where])


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.float() if tensor.element_size() == 1 else tensor).double()


def _collective(
    capsule: Capsule, tensors: _Tensors, rank: int, place: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What a collective gives of what the ranks of its group sent."""
    operator = capsule.ranks[rank][place]
    group = _group(operator)
    if group is None or any(one >= len(capsule.ranks) for one in group):
        raise NotReplayable("a collective of a group that the file does not know")
    number = sum(
        _group(one) == group and one.name == operator.name for one in capsule.ranks[rank][:place]
    )
    calls = []
    for one in group:
        same = [
            call
            for call in capsule.ranks[one]
            if _group(call) == group and call.name == operator.name
        ]
        if number >= len(same):
            raise NotReplayable("a collective that not every rank of its group recorded")
        calls.append(same[number])
    if not all(_is_whole(capsule, call) for call in calls):
        calls = [_part(capsule, call) for call in calls]
    sent = [_sent(capsule, tensors, call) for call in calls]
    own = group.index(rank)
    name = operator.name.split(".")[1]
    results = [capsule.values[index] for index in calls[own].outputs]
    made: list[torch.Tensor] = []
    if "reduce" in name and "scatter" not in name:
        made = [_reduced([one[n] for one in sent], operator) for n in range(len(sent[0]))]
    elif name == "_reduce_scatter_base_":
        whole = _reduced([one[-1] for one in sent], operator)
        made = [whole.reshape(len(group), -1)[own]]
    elif name == "_allgather_base_":
        made = [torch.cat([one[-1].double().reshape(-1) for one in sent])]
    elif name == "broadcast_":
        root = next((one for one in _plain(operator) if isinstance(one, int)), 0)
        made = [one.double() for one in sent[root]]
    else:
        raise NotReplayable(f"no reference of {name}")
    if len(made) != len(results):
        raise NotReplayable("a collective of several tensors")
    exact = [one.reshape(value.shape) for one, value in zip(made, results, strict=True)]
    # Each of the ranks' sums may be rounded once.
    plain = [one.to(getattr(torch, value.dtype)) for one, value in zip(exact, results, strict=True)]
    return plain, exact


def _group(operator: Operator) -> list[int] | None:
    if not operator.name.startswith("c10d."):
        return None
    return next(
        (one["g"] for one in operator.arguments[0] if isinstance(one, dict) and "g" in one), None
    )


def _plain(operator: Operator) -> Iterator[Any]:
    for one in operator.arguments[0]:
        if not isinstance(one, (dict, list, bool)):
            yield one


def _sent(capsule: Capsule, tensors: _Tensors, call: Operator) -> list[torch.Tensor]:
    found = [tensor_of(capsule.values[index]) for index in call.inputs if index >= 0]
    if any(one is None for one in found):
        raise NotReplayable("the file does not hold what a collective sent")
    return [one for one in found if one is not None]


def _reduced(sent: Sequence[torch.Tensor], operator: Operator) -> torch.Tensor:
    kind = next(
        (one["r"] for one in operator.arguments[0] if isinstance(one, dict) and "r" in one), ""
    )
    stacked = torch.stack([one.double() for one in sent])
    if kind in ("SUM", "AVG"):
        return stacked.sum(0) / (len(sent) if kind == "AVG" else 1)
    if kind == "MAX":
        return stacked.amax(0)
    if kind == "MIN":
        return stacked.amin(0)
    raise NotReplayable(f"no reference of the reduction {kind or 'of a collective'}")
