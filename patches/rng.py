"""Megatron's RNG tracker on a device that draws from the host's generator."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host


def _make_fork(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    log = logging.getLogger(context.module.__name__)

    @functools.wraps(upstream)
    @contextlib.contextmanager
    def fork(*args: Any, **kwargs: Any) -> Iterator[None]:
        """As upstream, which warns at the end if the host's generator was moved: it is this one."""
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, log, "disabled", log.disabled)
            stack.enter_context(upstream(*args, **kwargs))
            stack.callback(setattr, log, "disabled", True)
            yield

    return fork


def _has_own_generator(host: Host) -> str | None:
    if host.features.separate_rng:
        return f"the {host.backend.name} device has a generator of its own"
    return None


PATCHES = (
    megatron_patch(
        id="rng-tracker-fork",
        target="megatron.core.tensor_parallel.random:CudaRNGStatesTracker.fork",
        kind=Kind.WRAP,
        make=_make_fork,
        why="device and host share one generator, so every fork seems to disturb the host's state",
        removed_when="torch gives CPU tensors a generator that can be swapped",
        loses="every dropout under tensor parallelism logs a warning",
        skip_when=_has_own_generator,
    ),
)
