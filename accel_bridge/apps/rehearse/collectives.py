"""Collectives of a rehearsed rank: kept instead of sent, with kind, group, shapes and call site."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork, ProcessGroup
from torch.utils._pytree import tree_flatten

from accel_bridge.apps.rehearse import values

#: c10d operation -> kind, and whether the first or the second argument is what is sent.
KINDS: Final = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "allgather_": ("all_gather", 1),
    "_allgather_base_": ("all_gather", 1),
    "allgather_coalesced_": ("all_gather", 1),
    "allgather_into_tensor_coalesced_": ("all_gather", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
    "barrier": ("barrier", 0),
    "monitored_barrier_": ("barrier", 0),
}
#: Operations that answer with tensors beside the work.
_RETURNS_TENSORS: Final = frozenset(
    {
        *("allreduce_", "allgather_", "_allgather_base_", "reduce_scatter_"),
        *("_reduce_scatter_base_", "broadcast_", "scatter_", "alltoall_"),
    }
)
#: Numbers of a broadcast whose values are kept.
_FEW: Final = 1024
_OWN: Final = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


@dataclass(slots=True)
class Call:
    """One collective.

    :param step: training step, 0 before the first.
    :param kind: as in :data:`KINDS`.
    :param group: number of the group among those of this rank.
    :param dtype: of the tensors.
    :param shapes: of the tensors that are sent (received, for a receive).
    :param size: bytes of these.
    :param peer: rank in the group: root, destination or source; -1 without.
    :param site: file, line and function that called it.
    :param times: how many it stands for, where microbatches are counted that were not run.
    """

    step: int
    kind: str
    group: int
    dtype: str
    shapes: list[list[int]]
    size: int
    peer: int
    site: str
    times: int = 1

    def row(self) -> list[Any]:
        """For the rank's file."""
        return [getattr(self, name) for name in self.__slots__]


@dataclass
class Collectives:
    """All collectives of a rank, and the groups that it is in.

    :ivar sent: broadcast of this rank's -> the whole numbers that it sends, where they are few.
    :ivar received: gives those of another rank (its number, the broadcast), if it was rehearsed.
    """

    calls: list[Call] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    sent: dict[str, Any] = field(default_factory=dict)
    received: Callable[[int, str], Any] = lambda rank, broadcast: None
    _known: dict[str, int] = field(default_factory=dict)
    _broadcasts: Counter[int] = field(default_factory=Counter)

    def group(self, group: Any) -> int:
        name = group.group_name
        if name not in self._known:
            self._known[name] = len(self.groups)
            ranks = dist.get_process_group_ranks(group)
            self.groups.append({"ranks": ranks, "what": getattr(group, "group_desc", "") or name})
        return self._known[name]

    def again(self, calls: Sequence[Call]) -> None:
        """The same calls as in another microbatch."""
        for one in calls:
            self.calls.append(replace(one, step=self.step, times=1))
            if one.kind == "broadcast":
                self._broadcasts[one.group] += 1

    def call(self, func: Any, args: Sequence[Any]) -> Any:
        """Answer a c10d operation."""
        kind, group = self.write(func, args)
        if kind == "broadcast":
            self._broadcast(args[0], self.calls[-1], group.rank())
        else:
            _give_values(kind, args, group)
        work: Any = FakeWork()
        work = work.boxed() if hasattr(work, "boxed") else work
        name = func._schema.name.partition("::")[2]
        return (args[0], work) if name in _RETURNS_TENSORS else work

    def _broadcast(self, tensors: Sequence[torch.Tensor], call: Call, own: int) -> None:
        """Sizes and counts that a rank reads of another, as those of its batch."""
        ranks, root = self.groups[call.group]["ranks"], call.peer
        self._broadcasts[call.group] += 1
        if root != own:
            values.forget(tensors)
        for place, one in enumerate(tensors):
            if one.is_floating_point() or one.numel() > _FEW:
                continue
            name = f"{ranks} {self._broadcasts[call.group]} {place}"
            if root == own:
                if (found := values.known(one)) is not None:
                    with values.unset_fake_temporarily():
                        self.sent[name] = found.tolist()
            elif (given := self.received(ranks[root], name)) is not None:
                with values.unset_fake_temporarily():
                    values.give(one, torch.tensor(given, dtype=one.dtype))
            else:
                values.came_from(one, ranks[root])

    def write(self, func: Any, args: Sequence[Any]) -> tuple[str, Any]:
        """Write a c10d operation down; its kind and its group."""
        name = func._schema.name.partition("::")[2]
        kind, sent = KINDS.get(name, (name, 0))
        group = _group_of(args)
        tensors = [one for one in tree_flatten(args[sent])[0] if isinstance(one, torch.Tensor)]
        if kind == "barrier":
            tensors = []
        shapes = [list(one.shape) for one in tensors]
        if name == "allgather_":  # parts may have sizes of their own, which all must expect
            parts = [list(one.shape) for one in tree_flatten(args[0])[0]]
            shapes = parts if parts.count(parts[0]) < len(parts) else shapes
        peer = next((one for one in args[2:] if isinstance(one, int)), -1)
        self.calls.append(
            Call(
                self.step,
                kind,
                self.group(group),
                str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
                shapes,
                sum(one.numel() * one.element_size() for one in tensors),
                peer
                if kind in ("send", "recv", "broadcast", "reduce", "gather", "scatter")
                else -1,
                site(),
            )
        )
        return kind, group


def _group_of(args: Sequence[Any]) -> Any:
    for one in args[1:4]:
        if isinstance(one, torch.ScriptObject):
            return ProcessGroup.unbox(one)
        if isinstance(one, ProcessGroup):
            return one
    raise TypeError("a collective without a group")


def _give_values(kind: str, args: Sequence[Any], group: Any) -> None:
    """What a collective of known values leaves, if the other ranks have the same."""
    size = group.size()
    outs = [one for one in tree_flatten(args[0])[0] if isinstance(one, torch.Tensor)]
    if kind == "recv":
        values.forget(outs)  # what another rank has
        return
    if kind in ("all_reduce", "send", "barrier"):
        if kind == "all_reduce" and "SUM" in str(_reduction(args)):
            for one in outs:
                if (found := values.known(one)) is not None and size > 1:
                    with values.unset_fake_temporarily():
                        found.mul_(size)
        return
    sent = [one for one in tree_flatten(args[1])[0] if isinstance(one, torch.Tensor)]
    values.forget(outs)
    if kind == "all_gather" and len(sent) == 1 and (found := values.known(sent[0])) is not None:
        with values.unset_fake_temporarily():
            if len(outs) == 1:
                values.give(outs[0], torch.cat([found.reshape(-1)] * size).view(outs[0].shape))
            else:
                for one in outs:
                    values.give(one, found.clone())


def _reduction(args: Sequence[Any]) -> Any:
    for one in args[2:]:
        if isinstance(one, torch.ScriptObject):
            return dist.ReduceOp.unbox(one).op if hasattr(dist.ReduceOp, "unbox") else "SUM"
    return "SUM"


def site() -> str:
    """Where the program called: the first frame outside torch and this package."""
    frame = sys._getframe(2)
    first = ""
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if not name.startswith(_OWN) and not name.startswith("<"):
            return f"{name}:{frame.f_lineno} {code.co_name}"
        first = first or f"{name}:{frame.f_lineno} {code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return first
