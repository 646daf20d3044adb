"""Which ranks are rehearsed, and whether their collectives meet: what would hang is found here.

It imports no PyTorch: the command reads help and reports without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from accel_bridge.errors import BridgeError

#: Kinds whose shapes must be equal on every rank of the group. What a rank scatters or exchanges
#: may differ from its neighbours'.
_EQUAL: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
_POINT: Final = frozenset({"send", "recv"})
_STEP, _KIND, _GROUP, _DTYPE, _SHAPES, _SIZE, _PEER, _SITE, _TIMES = range(9)


def _all(calls: list[list[Any]]) -> list[list[Any]]:
    """Of the microbatches too that were not run."""
    runs = (list(run) for _, run in groupby(calls, itemgetter(_STEP, _TIMES)))
    return [call for run in runs for call in run * run[0][_TIMES]]


def match(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """Compare the rehearsed ranks of each group, call by call; the first difference of each."""
    problems = []
    alike = len({one["schedule"].get("run") for one in ranks}) == 1
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, list[Any]]]] = {}
    for one in ranks:
        by_group: dict[int, list[Any]] = {}
        for call in one["calls"] if alike else _all(one["calls"]):
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
                f"rank {more} calls {_described(call)}, which rank {fewer} never does; its next is "
                + (_described(other))
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
        after = f"; its last is {_described(last[0])}" if last else ""
        return f"rank {more} calls {_described(extra)}, which rank {fewer} never does{after}"
    return None


def _both(text: str, first: int, left: list[Any], rank: int, right: list[Any]) -> str:
    return f"{text}: rank {first} calls {_described(left)}, rank {rank} calls {_described(right)}"


def _described(call: list[Any]) -> str:
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
                        f"{name}: rank {who} calls {_described(lonely)}, and rank "
                        f"{receiver if who == sender else sender} never answers"
                    )
    return problems


class RankError(BridgeError):
    """A rank that does not exist."""


#: Ranks by their numbers, as they are asked for.
NUMBERS: Final = r"\d+(,\d+)*"


def choose(wanted: str, world: int, found: Mapping[str, Any] | None) -> list[int]:
    """The ranks to rehearse.

    :param wanted: numbers with commas, ``all``, ``all-kinds``, or empty.
    :param found: the first rank's result; None before there is one.
    :raises RankError: a number that is none of a rank.
    """
    if world < 1:
        raise RankError(
            "the command starts no rank.",
            evidence=f"its nodes times its processes of each are {world}",
            next="torchrun --nproc-per-node 8, or as many as a machine there has devices",
        )
    if re.fullmatch(NUMBERS, wanted):
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
    firsts: dict[int, int] = {}
    for kind, ranks in kinds.items():
        among = [rank for rank in rehearsed if rank in set(ranks)]
        if among:
            answer |= {rank: [rank] for rank in among}
            answer[among[0]] = [rank for rank in ranks if rank not in among[1:]]
            firsts.setdefault(kind[0], among[0])
    # A kind of which none was rehearsed is near another of its stage.
    for kind, ranks in kinds.items():
        if kind[0] in firsts and not set(rehearsed) & set(ranks):
            near = answer[firsts[kind[0]]]
            answer[firsts[kind[0]]] = sorted({*near, *ranks})
    return answer
