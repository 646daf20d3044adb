"""Megatron's and torch's errors in three parts: what happened, the evidence, what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.patches import _explanation
from accel_bridge.patches._advice_table import ADVICE, VALIDATION, said_by
from accel_bridge.patches._factory import megatron_arguments, megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.process.endings import explain, explain_uncaught, explanation
from accel_bridge.process.log import is_debug


def advise(error: BaseException, args: Any) -> None:
    """Keep with an error what it means, and add that as a note; once.

    Python prints notes below the message; the entry points print them in its place.

    :param args: Megatron's arguments, where they are known.
    """
    if explanation(error) is not None or getattr(error, "__notes__", None):
        return
    args = args or _explanation.arguments_of(error)
    text = f"{type(error).__name__}: {error}"
    known = next((advice for advice in ADVICE if advice.error.search(text)), None)
    if _explanation.stage_of(error) == _explanation.SAVING and not getattr(args, "save", ""):
        # Nothing else saves without --save.
        explained = VALIDATION.explain(
            "the state before it was not kept: --save was not given", args
        )
    elif known is not None:
        explained = known.explain(said_by(error), args)
    elif _explanation.is_megatrons(error):
        explained = _explanation.of_error(error, args)
    else:
        return
    explain(error, explained)
    note = f"accel_bridge: {explained}"
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:  # tracebacks show no notes there; the entry points do
        error.__notes__ = [note]  # type: ignore[unreachable, unused-ignore]


def _of_uncaught(error: BaseException) -> BridgeError | None:
    """What an error of Megatron means that came through none of the patched functions."""
    if not isinstance(error, Exception):
        return None
    advise(error, None)
    return explanation(error)


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    explain_uncaught(_of_uncaught)

    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return upstream(*args, **kwargs)
        except SystemExit as end:
            refusal = _explanation.of_silent_end(end, megatron_arguments())
            if refusal is not None:
                raise refusal from end
            if end.code in VALIDATION_CODES:
                explain(end, VALIDATION.explain(said_by(end), megatron_arguments()))
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # torch's CheckpointException is no Exception
            advise(error, megatron_arguments())
            raise

    return explained


def _make_quiet(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    def left(self: Any, ex_type: Any, ex_val: Any, ex_tb: Any) -> Any:
        """The error itself goes on to whoever shows it, once."""
        if is_debug():
            return upstream(self, ex_type, ex_val, ex_tb)
        return upstream(self, None, None, None)

    return left


#: Statuses with which Megatron ends after a loss that is not a number.
VALIDATION_CODES: Final = (16, 17)

PATCHES = (
    megatron_patch(
        id="error-advice",
        target="megatron.training.training:pretrain",
        kind=Kind.WRAP,
        make=_make,
        why="a checkpoint that cannot be loaded ends a training with status 0, and nothing "
        "explains a NaN loss's status",
        removed_when="upstream ends with an error that says why",
        loses="a training that has not run counts as one that has",
    ),
    megatron_patch(
        id="straggler-log",
        target="megatron.core.utils:StragglerDetector.__exit__",
        kind=Kind.WRAP,
        make=_make_quiet,
        why="the timer around each forward pass logs an error's traceback, as one line of "
        "thousands of characters",
        removed_when="upstream leaves an error to whoever catches it",
        loses="an error in a forward pass is reported twice, once as that line",
        uses=("self", "ex_type", "ex_val", "ex_tb"),
    ),
)
