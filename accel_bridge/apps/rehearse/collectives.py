"""Collectives of rehearsed ranks: kept instead of sent, and whether they meet.

Kind, group, shapes and call site are kept; what would hang is found here, and which ranks to
rehearse.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork, ProcessGroup
from torch.utils._pytree import tree_flatten

from accel_bridge.apps.rehearse import values
from accel_bridge.errors import BridgeError

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
    """

    step: int
    kind: str
    group: int
    dtype: str
    shapes: list[list[int]]
    size: int
    peer: int
    site: str

    def row(self) -> list[Any]:
        """For the rank's file."""
        return [getattr(self, name) for name in self.__slots__]


@dataclass
class Collectives:
    """All collectives of a rank, and the groups that it is in."""

    calls: list[Call] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    _known: dict[str, int] = field(default_factory=dict)

    def group(self, group: Any) -> int:
        """The number of a process group."""
        name = group.group_name
        if name not in self._known:
            self._known[name] = len(self.groups)
            ranks = dist.get_process_group_ranks(group)
            self.groups.append({"ranks": ranks, "what": getattr(group, "group_desc", "") or name})
        return self._known[name]

    def call(self, func: Any, args: Sequence[Any]) -> Any:
        """Answer a c10d operation."""
        kind, group = self.write(func, args)
        _give_values(kind, args, group, self.calls[-1].peer)
        work: Any = FakeWork()
        work = work.boxed() if hasattr(work, "boxed") else work
        name = func._schema.name.partition("::")[2]
        return (args[0], work) if name in _RETURNS_TENSORS else work

    def write(self, func: Any, args: Sequence[Any]) -> tuple[str, Any]:
        """Write a c10d operation down; its kind and its group."""
        name = func._schema.name.partition("::")[2]
        kind, sent = KINDS.get(name, (name, 0))
        group = _group_of(args)
        tensors = [one for one in tree_flatten(args[sent])[0] if isinstance(one, torch.Tensor)]
        if kind == "barrier":
            tensors = []
        peer = next((one for one in args[2:] if isinstance(one, int)), -1)
        self.calls.append(
            Call(
                self.step,
                kind,
                self.group(group),
                str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
                [list(one.shape) for one in tensors],
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


def _give_values(kind: str, args: Sequence[Any], group: Any, peer: int) -> None:
    """What a collective of known values leaves, if the other ranks have the same."""
    size = group.size()
    outs = [one for one in tree_flatten(args[0])[0] if isinstance(one, torch.Tensor)]
    if kind == "recv" or (kind == "broadcast" and peer != group.rank()):
        values.forget(outs)  # what another rank has
        return
    if kind in ("all_reduce", "send", "broadcast", "barrier"):
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


#: Kinds whose shapes must be equal on every rank of the group. What a rank scatters or exchanges
#: may differ from its neighbours'.
_EQUAL: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
_POINT: Final = frozenset({"send", "recv"})
_STEP, _KIND, _GROUP, _DTYPE, _SHAPES, _SIZE, _PEER, _SITE = range(8)


def match(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """Compare the rehearsed ranks of each group, call by call; the first difference of each."""
    problems = []
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, list[Any]]]] = {}
    for one in ranks:
        by_group: dict[int, list[Any]] = {}
        for call in one["calls"]:
            by_group.setdefault(call[_GROUP], []).append(call)
        for number, group in enumerate(one["own_groups"]):
            key = (group["what"], tuple(group["ranks"]))
            groups.setdefault(key, []).append((one["rank"], by_group.get(number, [])))
    for (what, members), found in groups.items():
        if len(found) < 2:
            continue
        name = f"{what or 'group'} of ranks {_short(members)}"
        (first, calls), *others = (
            (rank, [call for call in made if call[_KIND] not in _POINT]) for rank, made in found
        )
        for rank, made in others:
            if (text := _first_difference(first, calls, rank, made)) is not None:
                problems.append(f"{name}: {text}")
        problems += _points(name, members, found)
    return problems


def _short(members: Sequence[int]) -> str:
    if len(members) <= 4:
        return ",".join(map(str, members))
    return f"{members[0]},{members[1]}...{members[-1]}"


def _first_difference(first: int, calls: list[Any], rank: int, made: list[Any]) -> str | None:
    for number, (left, right) in enumerate(zip(calls, made, strict=False)):
        if left[_STEP] != right[_STEP]:
            more, call, fewer = (
                (first, left, rank) if left[_STEP] < right[_STEP] else (rank, right, first)
            )
            other = right if more == first else left
            return (
                f"rank {more} calls {_told(call)}, which rank {fewer} never does; its next is "
                + (_told(other))
            )
        if left[_KIND] != right[_KIND] or left[_PEER] != right[_PEER]:
            return _both(f"collective {number + 1} is not the same", first, left, rank, right)
        differs = left[_DTYPE] != right[_DTYPE]
        if left[_KIND] in _EQUAL:
            differs = differs or left[_SHAPES] != right[_SHAPES]
        if differs:
            text = f"collective {number + 1} has another shape or dtype"
            return _both(text, first, left, rank, right)
    if len(calls) != len(made):
        more, fewer = (first, rank) if len(calls) > len(made) else (rank, first)
        extra = max(calls, made, key=len)[min(len(calls), len(made))]
        last = min(calls, made, key=len)[-1:]
        after = f"; its last is {_told(last[0])}" if last else ""
        return f"rank {more} calls {_told(extra)}, which rank {fewer} never does{after}"
    return None


def _both(text: str, first: int, left: list[Any], rank: int, right: list[Any]) -> str:
    return f"{text}: rank {first} calls {_told(left)}, rank {rank} calls {_told(right)}"


def _told(call: list[Any]) -> str:
    shapes = " ".join(str(shape) for shape in call[_SHAPES][:2])
    return f"{call[_KIND]} {call[_DTYPE]} {shapes} at {call[_SITE]} (step {call[_STEP]})"


def _points(name: str, members: Sequence[int], found: list[tuple[int, list[Any]]]) -> list[str]:
    """Sends of one rank against receives of the other, in order."""
    problems = []
    by_rank = dict(found)
    for sender, calls in found:
        for receiver, made in by_rank.items():
            if sender == receiver:
                continue
            # The peer of a call is a rank of the group.
            sent = [c for c in calls if c[_KIND] == "send" and members[c[_PEER]] == receiver]
            got = [c for c in made if c[_KIND] == "recv" and members[c[_PEER]] == sender]
            for left, right in zip(sent, got, strict=False):
                if (left[_DTYPE], left[_SIZE]) != (right[_DTYPE], right[_SIZE]):
                    text = _both("a message has another shape", sender, left, receiver, right)
                    problems.append(f"{name}: {text}")
                    break
            else:
                if len(sent) != len(got):
                    lonely = max(sent, got, key=len)[min(len(sent), len(got))]
                    who = sender if len(sent) > len(got) else receiver
                    problems.append(
                        f"{name}: rank {who} calls {_told(lonely)}, and rank "
                        f"{receiver if who == sender else sender} never answers"
                    )
    return problems


class RankError(BridgeError):
    """A rank that does not exist."""


def choose(wanted: str, world: int, found: Mapping[str, Any] | None) -> list[int]:
    """The ranks to rehearse.

    :param wanted: numbers with commas, ``all``, ``all-kinds``, or empty.
    :param found: the first rank's result; None before there is one.
    :raises RankError: a number that is none of a rank.
    """
    if re.fullmatch(r"\d+(,\d+)*", wanted):
        ranks = sorted({int(one) for one in wanted.split(",")})
        if ranks[-1] >= world:
            raise RankError(
                f"there is no rank {ranks[-1]}.",
                evidence=f"the command starts {world} ranks, from 0 to {world - 1}",
                next="accel-bridge rehearse --ranks all-kinds -- COMMAND",
            )
        return ranks if found is not None else ranks[:1]
    if found is None:
        return [0]
    if wanted == "all":
        return list(range(world))
    kinds = of_all(found["groups"], world)
    if wanted == "all-kinds":
        return sorted(min(ranks) for ranks in kinds.values())
    # The first and the last stage of the first replica: where memory differs most.
    stages: dict[int, int] = {}
    for kind, ranks in kinds.items():
        stages.setdefault(kind[0], min(ranks))
    firsts = sorted(stages.values())
    return sorted({firsts[0], firsts[-1]})


def of_all(groups: Sequence[Mapping[str, Any]], world: int) -> dict[tuple[int, ...], list[int]]:
    """Kind -> its ranks.

    Ranks of different pipeline stages have different layers. Within a data-parallel group the
    last rank may have a shorter shard of the optimizer's states than the others. Ranks of a
    tensor-, context- or expert-parallel group differ in nothing that is measured here.
    """
    stage = [0] * world
    last = [0] * world
    for group in groups:
        name = group["what"].upper()
        ranks = group["ranks"]
        if re.fullmatch(r"PIPELINE_MODEL_PARALLEL_GROUP|PP", name):
            for place, rank in enumerate(ranks):
                stage[rank] = place
        elif re.fullmatch(r"DATA_PARALLEL_GROUP(_WITH_CP)?|DP(-CP)?", name) and len(ranks) > 1:
            last[ranks[-1]] = 1
    kinds: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world):
        kinds.setdefault((stage[rank], last[rank]), []).append(rank)
    return kinds


def stand_for(
    rehearsed: Sequence[int], kinds: Mapping[tuple[int, ...], list[int]]
) -> dict[int, list[int]]:
    """Rehearsed rank -> all ranks that it stands for, itself among them."""
    answer: dict[int, list[int]] = {}
    for ranks in kinds.values():
        among = [rank for rank in rehearsed if rank in set(ranks)]
        if among:
            answer[among[0]] = ranks
            for other in among[1:]:
                answer[other] = [other]
    # A kind of which none was rehearsed is near another of its stage.
    firsts: dict[int, int] = {}
    for kind, ranks in kinds.items():
        among = [rank for rank in rehearsed if rank in set(ranks)]
        if among:
            firsts.setdefault(kind[0], among[0])
    for kind, ranks in kinds.items():
        if kind[0] in firsts and not set(rehearsed) & set(ranks):
            near = answer[firsts[kind[0]]]
            answer[firsts[kind[0]]] = sorted({*near, *ranks})
    return answer
