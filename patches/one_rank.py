"""What ranks agree on after a step, answered on the host where there is one rank.

Upstream sends a number to the device, reduces it over a group and reads it back, several times a
step, while the device has nothing else to do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import DISTRIBUTION, megatron_patch
from accel_bridge.patching import Kind, PatchContext, around


def _any(_context: PatchContext, call: Callable[[], Any], value: Any) -> Any:
    """Whether any rank of the job says so; a tuple for a list."""
    import torch

    if torch.distributed.get_world_size() > 1:
        return call()
    return tuple(map(bool, value)) if isinstance(value, list) else bool(value)


def _of_model(answer: Callable[[Any], Any]) -> Callable[[PatchContext], Callable[..., Any]]:
    """``make`` for a reduction over the model-parallel group: ``answer(value)`` of one rank."""

    def make(context: PatchContext) -> Callable[..., Any]:
        upstream = context.original
        value_of = context.argument(context.patch.uses[0])
        group_of = context.optional_argument("group")  # since 0.19

        @functools.wraps(upstream)
        def reduced(*args: Any, **kwargs: Any) -> Any:
            from megatron.core import parallel_state

            group = None if group_of is None else group_of.get(args, kwargs)
            group = parallel_state.get_model_parallel_group() if group is None else group
            if group.size() > 1:
                return upstream(*args, **kwargs)
            return answer(value_of.get(args, kwargs))

        return reduced

    return make


def _as_float32(value: Any) -> float | None:
    """The number as a device's float32 holds it; upstream's -1 stands for none."""
    import torch

    found = -1.0 if value is None else torch.tensor(float(value), device="cpu").item()
    return None if found == -1.0 else found


#: What the patches have in common.
_ALIKE: Final[dict[str, Any]] = {
    "kind": Kind.WRAP,
    "why": "the host already has the number",
    "removed_when": "upstream reduces over no group of one rank",
    "loses": "time between two steps, which shows where a step is short",
}
_UTILS: Final = "megatron.training.utils"
PATCHES = (
    megatron_patch(
        id="one-rank-any",
        target="megatron.core.rerun_state_machine:RerunStateMachine._reduce_any",
        make=around(_any),
        requires=f"{DISTRIBUTION}>=0.16",
        elsewhere="before 0.16 the state machine reduces in place",
        uses=("value",),
        **_ALIKE,
    ),
    megatron_patch(
        id="one-rank-all",
        target=f"{_UTILS}:logical_and_across_model_parallel_group",
        make=_of_model(lambda value: value is True),
        uses=("input",),
        **_ALIKE,
    ),
    megatron_patch(
        id="one-rank-largest",
        target=f"{_UTILS}:reduce_max_stat_across_model_parallel_group",
        make=_of_model(_as_float32),
        uses=("stat",),
        **_ALIKE,
    ),
)
