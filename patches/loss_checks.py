"""Checks of losses and gradients for NaN and infinity: read once an iteration.

Upstream reads the device's answer at once. The host then waits for all that was launched before,
and the device for the host: after the loss of every micro batch, before its backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch, on_host
from accel_bridge.patching import Kind, PatchContext, before

#: Attribute of the state machine: (answer on the device, what upstream does with it) of each check.
_UNREAD: Final = "_accel_bridge_unread_checks"


def _on_device(result: Any) -> bool:
    return bool(result.is_cuda)


def _can_wait(machine: Any, module: Any, result: Any, rejects: Any) -> bool:
    """Whether a check's answer may be read when the iteration's backward passes are done."""
    import torch

    modes = (module.RerunMode.DISABLED, module.RerunMode.VALIDATE_RESULTS)
    return (
        rejects in (torch.isnan, torch.isinf)
        and isinstance(result, torch.Tensor)
        and result.numel() == 1
        and _on_device(result)
        # Not a repetition, which compares results, and not an evaluation.
        and machine.state == module.RerunState.INITIAL_RUN
        and machine.mode in modes
        and not machine.error_injector.should_inject_errors
        and not torch.cuda.is_current_stream_capturing()
    )


def _make_validate(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    result_of, rejects_of = (context.argument(name) for name in context.patch.uses)

    def validate_result(*args: Any, **kwargs: Any) -> Any:
        """As upstream; a check for NaN or infinity is read before the optimizer's step."""
        machine = args[0]
        result, rejects = result_of.get(args, kwargs), rejects_of.get(args, kwargs)
        if not _can_wait(machine, context.module, result, rejects):
            upstream(*args, **kwargs)
            return
        # Not the result itself, which holds its graph: hence no `around`, whose call keeps it.
        found = result.detach()
        plain, named = result_of.put(args, kwargs, found)
        again = functools.partial(upstream, *plain, **named)
        answer = rejects(found).reshape(())
        machine.__dict__.setdefault(_UNREAD, []).append((answer, again))

    return validate_result


def _read(_context: PatchContext, machine: Any) -> None:
    """As upstream, after the checks of the iteration so far."""
    import torch

    unread = machine.__dict__.pop(_UNREAD, [])
    if unread and bool(torch.stack([answer for answer, _ in unread]).any()):
        # In their order: upstream counts them, and stops or repeats at the first.
        for _, again in unread:
            again()


_MACHINE: Final = "megatron.core.rerun_state_machine:RerunStateMachine"
PATCHES = (
    megatron_patch(
        id="loss-checks-read",
        target=f"{_MACHINE}.should_run_forward_backward",
        kind=Kind.WRAP,
        make=before(_read),
        why="what loss-checks-later has kept is read before the optimizer's step",
        removed_when="with loss-checks-later",
        loses="a NaN in a loss would stop no training",
        skip_when=on_host,
        uses=("self",),
    ),
    megatron_patch(
        id="loss-checks-later",
        target=f"{_MACHINE}.validate_result",
        kind=Kind.WRAP,
        make=_make_validate,
        why="every micro batch's loss is read on the host before its backward pass is launched: "
        "the device runs dry",
        removed_when="upstream reads its checks of an iteration together",
        loses="2% of a step of a large model's time",
        uses=("result", "rejection_func"),
        skip_when=on_host,
        after=("loss-checks-read",),
        needs=("loss-checks-read",),
    ),
)
