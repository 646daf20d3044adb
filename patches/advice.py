"""What to do about errors of torch that do not say it themselves."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


@dataclass(frozen=True, slots=True)
class Advice:
    """What is said below one kind of error.

    :param error: pattern of ``type: message``.
    :param what: what happened.
    :param flags: Megatron's arguments that bear on it: their values are the evidence.
    :param next: what mends it.
    """

    error: re.Pattern[str]
    what: str
    flags: tuple[str, ...]
    next: str

    def note(self, args: Any) -> str:
        """The note for an error: what, evidence, next."""
        given = {flag: getattr(args, flag, None) for flag in self.flags}
        words = [
            f"--{flag.replace('_', '-')}" + ("" if value is True else f" {value}")
            for flag, value in given.items()
            if value is not None and value is not False
        ]
        evidence = [f"  evidence: {' '.join(words)}"] if words else []
        return "\n".join([f"accel_bridge: {self.what}", *evidence, f"  next:     {self.next}"])


ADVICE: Final = (
    Advice(
        re.compile(r"OutOfMemoryError|out of memory", re.IGNORECASE),
        "the device's memory is full",
        (
            "micro_batch_size",
            "seq_length",
            "recompute_granularity",
            "use_distributed_optimizer",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
        ),
        "a smaller --micro-batch-size with the same --global-batch-size gives the same training; "
        "then --recompute-granularity selective, or full with --recompute-method uniform "
        "--recompute-num-layers 1; then --use-distributed-optimizer or more "
        "--tensor-model-parallel-size on several devices",
    ),
    Advice(
        re.compile("DefaultCPUAllocator: can't allocate memory"),
        "this machine's memory is full",
        ("micro_batch_size", "seq_length", "num_layers", "hidden_size", "num_workers"),
        "a smaller --micro-batch-size or model, or fewer processes on this machine",
    ),
    Advice(
        re.compile("doesn't have NCCL built in"),
        "this build of torch has no NCCL, with which GPUs talk to one another",
        ("distributed_backend",),
        "install torch's CUDA build for Linux, or try with --distributed-backend gloo (slow)",
    ),
)


def advise(error: BaseException, args: Any) -> None:
    """Add a note to an error that :data:`ADVICE` knows; Python prints it below the message."""
    text = f"{type(error).__name__}: {error}"
    known = next((advice for advice in ADVICE if advice.error.search(text)), None)
    if known is not None and not getattr(error, "__notes__", ()):
        error.add_note(known.note(args))


def _arguments() -> Any:
    from megatron.training import global_vars

    return global_vars._GLOBAL_ARGS


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    @functools.wraps(upstream)
    def pretrain(*args: Any, **kwargs: Any) -> Any:
        try:
            return upstream(*args, **kwargs)
        except Exception as error:
            advise(error, _arguments())
            raise

    return pretrain


PATCHES = (
    megatron_patch(
        id="error-advice",
        target="megatron.training.training:pretrain",
        kind=Kind.WRAP,
        make=_make,
        why="out of memory, or a torch without NCCL, ends in a traceback that names no flag",
        removed_when="never: it is advice, not a change",
        loses="the traceback alone",
    ),
)
