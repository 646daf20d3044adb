"""The tape: every operator that a module runs in one step, forward and backward, with its tensors.

A dispatch mode sees PyTorch's operators, collectives among them; a kernel contract is one operator
(and its backward pass another), whatever it runs inside. Tensors are known by their content, so a
change in place, a view or a buffer that is used again needs no rule of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist
import typing_extensions
from torch._C import _current_autograd_node as current_node
from torch._C._autograd import _get_sequence_nr as _next_node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from accel_bridge.recording._capsule import ROOM, SIZES, Operator, Value
from accel_bridge.recording._moments import Moments
from accel_bridge.recording._part import Part, Rule, part_of, rule_of_contract, rule_of_operator

#: What a tape holds besides modules: parts of a step that no module runs.
STEP: Final = "step"
LOSS: Final = "loss"
GRADIENTS: Final = "gradients"
OPTIMIZER: Final = "optimizer"
#: After this module's forward pass the loss is computed.
_LAST: Final = "output_layer"
#: Operators that write a tensor without reading it.
_OVERWRITES: Final = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_")
#: Operators that compute nothing, or leave what was in memory before.
_NOTHING: Final = ("detach", "alias", "lift_fresh", "_local_scalar_dense", "record_stream")
#: Collectives whose first argument is only written.
_RECEIVES: Final = ("gather", "scatter", "alltoall", "recv")
#: Number of the nodes that add up gradients of parameters.
_ACCUMULATES: Final = (1 << 64) - 1
#: Values kept of every tensor.
_SAMPLE: Final = 256
#: A tensor with more bytes than this is not kept whole; those of an operator that are all smaller
#: than the second need no part while there is room.
_TENSOR: Final = 16 << 20
_SMALL: Final = 1 << 18
_HERE: Final = os.path.dirname(__file__)
_OWN: Final = (
    *(os.path.dirname(torch.__file__) + os.sep, _HERE + os.sep, contextlib.__file__),
    typing_extensions.__file__,
    *(os.path.join(os.path.dirname(_HERE), name) + os.sep for name in ("device", "kernels")),
)


@dataclass
class RankTape:
    """What one rank's tape holds."""

    operators: list[Operator] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


class Tape(TorchDispatchMode):
    """Records the operators of one module; :meth:`start` and :meth:`stop` around the step.

    :param name: global name of the module, or one of :data:`STEP`, :data:`LOSS`,
        :data:`GRADIENTS` and :data:`OPTIMIZER`; several with ``+`` between them.
    :param room: bytes of tensors; three quarters are for parts of operators that are larger.
    """

    def __init__(self, name: str, room: int = ROOM) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = frozenset(name.split("+"))
        self.tape = RankTape()
        #: A module of this name has run.
        self.found = bool(self.names & {STEP, LOSS, GRADIENTS, OPTIMIZER})
        self._indices: dict[str, int] = {}
        self._room, self._for_parts = room, room * 3 // 4
        #: Elements of a tensor of a part: there are parts of some thousand tensors in a layer.
        self._most = room >> 11
        self._open = STEP in self.names
        self._phase = "forward"
        self._done = False
        self._paused = 0
        #: Autograd's nodes that belong to the module, and those inside of a kernel: [from, to).
        self._nodes: list[tuple[int, int]] = []
        self._inside_kernels: list[tuple[int, int]] = []
        self._began = 0
        self._parameters: set[int] = set()
        self._modules: list[str] = []
        self._origins: dict[int, tuple[str, str]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._hooks: list[Any] = []
        self._running = False

    # --- the step -----------------------------------------------------------------------------

    def start(self, modules: Sequence[tuple[str, torch.nn.Module]]) -> None:
        """The step begins.

        :param modules: (global name, module) of all modules.
        """
        for name, module in modules:
            self._hooks += self._watch(name, module)
        self._running = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """The step has ended."""
        if not self._running:
            return
        self._running = False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        for flush in self._waiting:
            flush()
        self._waiting.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is not the program's."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs inside is the part ``name`` of the step."""
        was, phase = self._open, self._phase
        self._open, self._phase = was or name in self.names, "update"
        self._modules.append(name)
        try:
            yield
        finally:
            self._modules.pop()
            self._open, self._phase = was, phase

    def _watch(self, name: str, module: torch.nn.Module) -> Iterator[Any]:
        own, last = name in self.names, LOSS in self.names and name.endswith(_LAST)
        if own:
            self._parameters |= {id(one) for one in module.parameters()}

        def before(_: torch.nn.Module, inputs: Any) -> None:
            self._modules.append(name)
            if own and not self._open:
                self.found = True
                self._began = _next_node()
                self._open = not self._done and current_node() is None

        def after(_: torch.nn.Module, inputs: Any, output: Any) -> None:
            if name in self._modules:
                del self._modules[len(self._modules) - 1 - self._modules[::-1].index(name) :]
            if own and (not self._done or current_node() is not None):
                # Recomputed in the backward pass, its nodes are new ones.
                self._nodes.append((self._began, _next_node()))
                self._open, self._done = False, True
            if last and not self._done:
                self._open, self._done = True, True
                self._began = _next_node()

        yield module.register_forward_pre_hook(before, prepend=True)
        yield module.register_forward_hook(after, always_call=True)

    def _records(self) -> bool:
        """Whether what runs now belongs to the module."""
        if self._paused or not self._running:
            return False
        node = current_node()
        if node is None:
            return self._open
        number = node._sequence_nr()
        if number == _ACCUMULATES:
            return STEP in self.names or id(getattr(node, "variable", None)) in self._parameters
        if LOSS in self.names and self._open:
            self._open = False
            self._nodes.append((self._began, number + 1))
        if _within(number, self._inside_kernels):
            return False
        return STEP in self.names or _within(number, self._nodes)

    # --- operators ----------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if not self._records() or name in _NOTHING or "empty" in name:
            return func(*args, **kwargs)
        written = [
            one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments
        ]
        names = [one.name for one in func._schema.arguments]
        overwritten = name in _OVERWRITES
        if func.namespace == "c10d":
            written = [place == 0 for place in range(len(names))]
            overwritten = any(word in name for word in _RECEIVES)
        by_name = dict(zip(names, written, strict=True))
        writer = _Arguments(self._index)
        for value, own, writes in zip(args, names, written, strict=False):
            writer.add(value, own, writes, writes and overwritten)
        for key, value in kwargs.items():
            writer.add(value, key, by_name.get(key, False), by_name.get(key, False), named=True)
        if not writer.tensors:
            return func(*args, **kwargs)
        site, module = self._where()
        if func.namespace == "c10d" or -1 not in writer.inputs:
            with self.paused():
                writer.find_part(rule_of_operator(func, args), self._most)
        with self.paused():
            result = func(*args, **kwargs)
            if func.namespace == "c10d":
                _wait(result)
            self._add(str(func), writer, result, site, module)
        return result

    def contract(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel ``function`` of the contract ``name`` as one operator."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not self._records():
                return function(*args, **kwargs)
            site, module = self._where()
            code = getattr(inspect.unwrap(function), "__code__", None)
            kernel = f"{function.__module__}.{getattr(function, '__qualname__', '')}"
            if code is not None:
                kernel += f" ({_short(code.co_filename)}:{code.co_firstlineno})"
            with self.paused():
                writer = _Arguments(self._index)
                rule = rule_of_contract(name, (*args, *kwargs.values()))
                names = iter(rule.inputs if rule is not None else ())
                for value in args:
                    writer.add(value, next(names, ""))
                for key, value in kwargs.items():
                    writer.add(value, key, named=True)
                writer.find_part(rule, self._most)
            first = _next_node()
            with self.paused():
                args, kwargs, aliases = _aliases(args, kwargs)
                result = function(*args, **kwargs)
            self._inside_kernels.append((first, _next_node()))
            with self.paused():
                writer.find_changes()
                self._add(name, writer, result, site, module, kernel)
                if aliases:
                    self._backward(name, writer, result, aliases, (site, module, kernel))
            return result

        return recorded

    def _backward(
        self,
        name: str,
        writer: _Arguments,
        result: Any,
        aliases: dict[int, torch.Tensor],
        where: tuple[str, str, str],
    ) -> None:
        """The kernel's backward pass becomes an operator when its last gradient is there."""
        outputs = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]
        arriving: dict[int, tuple[int, torch.Tensor | None]] = {}
        leaving: dict[int, tuple[int, torch.Tensor | None]] = {}

        def emit() -> None:
            if leaving and arriving:
                places, made = sorted(arriving), sorted(leaving)
                operator = Operator(
                    f"{name}.backward",
                    "backward",
                    where[1],
                    where[0],
                    where[2],
                    [*writer.arguments(), places, made],
                    (*writer.inputs, *(arriving[place][0] for place in places)),
                    tuple(leaving[place][0] for place in made),
                    (),
                )
                cut = [*writer.cut, *(arriving[place][1] for place in places)]
                results = [leaving[place][1] for place in made]
                self._keep(operator, cut if writer.cut else [], results)
                leaving.clear()

        def gradient(
            into: dict[int, tuple[int, torch.Tensor | None]],
            place: int,
            part: Callable[[int, torch.Tensor], torch.Tensor | None] | None,
        ) -> Callable[[torch.Tensor], None]:
            def hook(tensor: torch.Tensor) -> None:
                with self.paused():
                    cut = None if part is None else part(place, tensor)
                    into[place] = self._index(tensor), cut
                if into is leaving and len(leaving) == len(aliases):
                    emit()

            return hook

        part = writer.part
        of_result, of_input = (None, None) if part is None else (part.result, part.gradient)
        for place, output in enumerate(outputs):
            if output.requires_grad:
                output.register_hook(gradient(arriving, place, of_result))
        for place, alias in aliases.items():
            alias.register_hook(gradient(leaving, place, of_input))
        self._waiting.append(emit)

    def _add(
        self,
        name: str,
        writer: _Arguments,
        result: Any,
        site: str,
        module: str,
        kernel: str = "",
    ) -> None:
        found = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]
        touched = [writer.tensors[place] for place in writer.changed]
        returned = [one for one in found if not any(one is other for other in touched)]
        operator = Operator(
            name,
            "backward" if current_node() is not None else self._phase,
            module,
            site,
            kernel,
            writer.arguments(),
            tuple(writer.inputs),
            tuple(self._index(one) for one in (*returned, *touched)),
            tuple(writer.changed),
        )
        results: list[torch.Tensor | None] = []
        if writer.part is not None:
            results += [writer.part.result(place, one) for place, one in enumerate(returned)]
            changed = zip(writer.changed, touched, strict=True)
            results += [writer.part.changed(place, one) for place, one in changed]
        self._keep(operator, writer.cut, results)

    def _keep(
        self,
        operator: Operator,
        inputs: Sequence[torch.Tensor | None],
        results: Sequence[torch.Tensor | None],
    ) -> None:
        """Keep an operator, and its part where the tape does not hold all of it."""
        values = self.tape.values
        whole = all(
            values[one].data is not None
            for one in (*operator.inputs, *operator.outputs)
            if one >= 0
        )
        sizes = [one.numel() * one.element_size() for one in (*inputs, *results) if one is not None]
        read = [one for one, place in zip(inputs, operator.inputs, strict=False) if place >= 0]
        cut = all(one is not None for one in read) and len(sizes) > len(read) > 0
        if not whole and cut and max(sizes) <= _TENSOR and sum(sizes) <= self._room:
            with self.paused():
                places = [-1 if one is None else self._index(one, 0) for one in (*inputs, *results)]
            count = len(inputs)
            part = (tuple(places[:count]), tuple(places[count:]))
            operator = replace(operator, part_inputs=part[0], part_outputs=part[1])
        self.tape.operators.append(operator)

    def _where(self) -> tuple[str, str]:
        """(source line, module) of what runs now; of a backward pass, those of its forward pass."""
        node = current_node()
        if node is not None:
            number = node._sequence_nr()
            if number in self._origins:
                return self._origins[number]
        found = _site(), self._modules[-1] if self._modules else ""
        if node is None:
            # The node of what runs now has just been made.
            self._origins.setdefault(_next_node() - 1, found)
        return found

    # --- values -------------------------------------------------------------------------------

    def _index(self, tensor: torch.Tensor, reserved: int | None = None) -> int:
        """The number of a tensor's content.

        :param reserved: bytes that it must leave for others.
        """
        host, dtype, digest = content(tensor)
        room = self._room - (self._for_parts if reserved is None else reserved)
        size = host.numel() * host.element_size()
        place = self._indices.setdefault(digest, len(self.tape.values))
        values = self.tape.values
        if place == len(values):
            values.append(Value(digest, dtype, tuple(host.shape), *_numbers(host)))
        if values[place].data is None and size <= min(_TENSOR, room):
            self._room -= size
            values[place] = replace(values[place], data=_bytes(host).tobytes())
        return place


def content(tensor: torch.Tensor) -> tuple[torch.Tensor, str, str]:
    """A tensor as a file holds it, on the host; its dtype, and a digest of all of it."""
    held = tensor.detach()
    if held.layout is not torch.strided:
        held = held.to_dense()
    host = held.cpu().contiguous()
    if str(host.dtype).removeprefix("torch.") not in SIZES:
        host = torch.view_as_real(host).contiguous() if host.is_complex() else host.float()
    dtype = str(host.dtype).removeprefix("torch.")
    head = f"{dtype}{tuple(host.shape)}".encode()
    digest = hashlib.blake2b(head + memoryview(_bytes(host)), digest_size=16)
    return host, dtype, digest.hexdigest()


def _bytes(host: torch.Tensor) -> Any:
    flat = host.reshape(-1)
    if flat.numel() < 2:  # its stride may be anything
        flat = torch.empty(flat.shape, dtype=flat.dtype).copy_(flat)
    return flat.view(torch.uint8).numpy()


class _Arguments:
    """The arguments of a call as JSON, and the tensors in them.

    :ivar part: how the call is cut; None where it is not.
    :ivar cut: what is kept of each tensor; empty without a part.
    """

    def __init__(self, index: Callable[[torch.Tensor], int]) -> None:
        self._index = index
        self.tensors: list[torch.Tensor] = []
        self.inputs: list[int] = []
        self.changed: list[int] = []
        self.part: Part | None = None
        self.cut: list[torch.Tensor | None] = []
        self._names: list[str] = []
        self._name = ""
        self._positional: list[Any] = []
        self._named: dict[str, Any] = {}
        self._writes = self._overwrites = False

    def add(
        self,
        value: Any,
        name: str,
        writes: bool = False,
        overwrites: bool = False,
        named: bool = False,
    ) -> None:
        """One argument; ``named`` where it is given by name."""
        self._writes, self._overwrites, self._name = writes, overwrites, name
        encoded = self._encoded(value)
        if named:
            self._named[name] = encoded
        else:
            self._positional.append(encoded)

    def find_part(self, rule: Rule | None, most: int) -> None:
        """Cut the tensors, before they change."""
        if max((one.numel() * one.element_size() for one in self.tensors), default=0) <= _SMALL:
            return
        self.part = part_of(rule, self._names, self.tensors, most)
        if self.part is not None:
            pairs = zip(self.inputs, self.part.inputs(self.tensors), strict=True)
            self.cut = [None if place < 0 else one for place, one in pairs]

    def arguments(self) -> list[Any]:
        """[positional, by name]: what is no JSON is an object with one letter.

        t: place among the operator's inputs; e: [dtype, shape] of one that is only written; k and
        f: name and fields of a dataclass; d: dtype; g: the ranks of a process group; r: a
        reduction; x: anything else.
        """
        return [self._positional, self._named]

    def find_changes(self) -> None:
        """Compare the tensors with what they were."""
        self.changed = [
            place
            for place, (tensor, before) in enumerate(zip(self.tensors, self.inputs, strict=True))
            if self._index(tensor) != before
        ]

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            place = len(self.tensors)
            self.tensors.append(value)
            self._names.append(self._name)
            if self._writes:
                self.changed.append(place)
            if self._overwrites:
                self.inputs.append(-1)
                dtype = str(value.dtype).removeprefix("torch.")
                return {"e": [dtype, list(value.shape)], "t": place}
            self.inputs.append(self._index(value))
            return {"t": place}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (list, tuple)):
            return [self._encoded(one) for one in value]
        if isinstance(value, torch.dtype):
            return {"d": str(value).removeprefix("torch.")}
        if is_dataclass(value) and not isinstance(value, type):
            inner = {}
            for one in fields(value):
                self._name = one.name
                inner[one.name] = self._encoded(getattr(value, one.name))
            return {"k": type(value).__name__, "f": inner}
        if isinstance(value, dist.ProcessGroup):
            return {"g": dist.get_process_group_ranks(value)}
        return _script_object(value)


def _script_object(value: Any) -> Any:
    """Process groups and reductions, as collectives get them."""
    if isinstance(value, torch.ScriptObject):
        with contextlib.suppress(Exception):
            return {"g": dist.get_process_group_ranks(dist.ProcessGroup.unbox(value))}
        return {"r": _reduction()}
    return {"x": str(value)[:80]}


def _reduction() -> str:
    """The reduction of the collective that runs: the operator's own object says nothing."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        reduction = getattr(frame.f_locals.get("opts"), "reduceOp", None)
        if reduction is not None and frame.f_code.co_filename.startswith(_OWN):
            return str(getattr(reduction, "op", "")).rpartition(".")[2]
    return ""


def _aliases(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, torch.Tensor]]:
    """The arguments with a view in place of each tensor that wants a gradient.

    The gradient of a view is this call's alone.
    """
    aliases: dict[int, torch.Tensor] = {}
    place = 0

    def alias(value: Any) -> Any:
        nonlocal place
        own, place = place, place + _tensors_in(value)
        if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
            aliases[own] = value.view_as(value)
            return aliases[own]
        return value

    made = tuple(alias(value) for value in args)
    return made, {key: alias(value) for key, value in kwargs.items()}, aliases


def _tensors_in(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_tensors_in, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_tensors_in(getattr(value, one.name)) for one in fields(value))
    return int(isinstance(value, torch.Tensor))


def _numbers(host: torch.Tensor) -> tuple[Moments, array[float]]:
    flat = host.reshape(-1)
    wide = flat.float() if host.element_size() == 1 else flat
    wide = wide.double()
    if not wide.numel():
        return Moments(1, 0.0, 0.0, 0.0), array("f")
    moments = Moments(
        wide.numel(), float(wide.sum()), float(wide.square().sum()), float(wide.abs().max())
    )
    if wide.numel() > _SAMPLE:
        places = torch.arange(_SAMPLE) * (wide.numel() - 1) // (_SAMPLE - 1)
        wide = wide[places]
    return moments, array("f", wide.tolist())


def _wait(result: Any) -> None:
    """A collective has ended: its tensors are read now."""
    for one in tree_flatten(result)[0]:
        if isinstance(one, torch.ScriptObject):
            dist.Work.unbox(one).wait()


def _within(number: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= number < last for first, last in ranges)


def _site() -> str:
    """The first frame outside torch and this package."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if not name.startswith((*_OWN, "<")):
            return f"{_short(name)}:{frame.f_lineno} {code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def _short(path: str) -> str:
    """A file's path as one would import it."""
    for mark in ("site-packages/", "dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    return "/".join(path.split(os.sep)[-4:])
