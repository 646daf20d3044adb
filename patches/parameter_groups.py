"""Groups of an optimizer's parameters that a checkpoint gives back to each other's parameters.

Megatron 0.16 describes a group with a learning rate of its own by that rate alone, and still looks
for a saved group by the marks of earlier versions, of which two such groups have the same. One of
them then stands for both: the distributed optimizer goes on with its rates for all parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, around

#: Of each group: whether its learning rate is everybody's, and the mark that once said so.
_USUAL, _MARK = "default_config", "is_decoupled_lr"

Groups = list[dict[str, Any]]


@contextlib.contextmanager
def _distinguished(*lists: Groups) -> Iterator[None]:
    """Groups with a rate of their own have the mark of earlier versions meanwhile."""
    own = [
        group
        for groups in lists
        for group in groups
        if group.get(_USUAL) is False and group.get(_MARK) is False
    ]
    for group in own:
        group[_MARK] = True
    try:
        yield
    finally:
        _clear(own)


def _clear(groups: Groups) -> None:
    """What is saved later looks as upstream writes it."""
    for group in groups:
        if group.get(_USUAL) is False:
            group[_MARK] = False


def _filter(_context: PatchContext, call: Callable[[], Any], current: Groups, saved: Groups) -> Any:
    """As upstream, of groups that differ."""
    with _distinguished(current, saved):
        return call()


def _load(_context: PatchContext, call: Callable[[], Any], of: Any, given: Any) -> Any:
    """As upstream, of groups that differ."""
    optimizer, saved = of.optimizer, given.get("optimizer")
    groups = saved.get("param_groups", []) if isinstance(saved, Mapping) else []
    with _distinguished(optimizer.param_groups, groups):
        found = call()
    _clear(optimizer.param_groups)  # loading has made new ones
    return found


def _patch(name: str, target: str, action: Callable[..., Any], uses: tuple[str, ...]) -> Any:
    return megatron_patch(
        id=name,
        target=target,
        requires="megatron-core>=0.16,<0.19",
        elsewhere="before 0.16 the mark is set, since 0.19 groups are found by their rates",
        kind=Kind.WRAP,
        make=around(action),
        why="with --decoupled-lr a resumed training takes one group's learning rates for all "
        "parameters (distributed optimizer, silently), or fails on the group's size",
        removed_when="Megatron before 0.19 is not supported",
        loses="a training with --decoupled-lr resumes wrongly or not at all",
        uses=uses,
    )


PATCHES = (
    _patch(
        "parameter-groups",
        "megatron.core.optimizer.optimizer:MegatronOptimizer._filter_and_reorder_param_groups",
        _filter,
        ("current_groups", "state_dict_groups"),
    ),
    _patch(
        "parameter-groups-distributed",
        "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.load_state_dict",
        _load,
        ("self", "state_dict"),
    ),
)
