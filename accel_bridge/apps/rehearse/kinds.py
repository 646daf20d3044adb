"""Which ranks are rehearsed, and which ranks each of them stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from accel_bridge.errors import BridgeError


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
