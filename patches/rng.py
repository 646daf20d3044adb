"""Megatron's RNG tracker on a device that draws from the host's generator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from accel_bridge._host import Host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

#: Name that the tracker gives to the state outside every fork; it is not kept in ``states_``.
DEFAULT_STATE = "default-rng"


def _make_fork(context: PatchContext) -> Callable[..., Any]:
    import torch

    default_name = context.module._MODEL_PARALLEL_RNG_TRACKER_NAME

    @contextlib.contextmanager
    def fork(self: Any, name: str = default_name) -> Iterator[None]:
        """Draw from the state ``name`` inside the block, and leave the generator as it was.

        Upstream also compares the host generator before and after and warns when it moved; here
        that generator *is* the tracked one, so it moves inside and is put back at the end.
        """
        if name not in self.states_:
            raise KeyError(f"rng state {name} is not added to the tracker")
        # Megatron before 0.16 does not keep the name.
        outer_name = getattr(self, "_current_state_name", DEFAULT_STATE)
        outer_state = torch.get_rng_state()
        if outer_name != DEFAULT_STATE:
            self.states_[outer_name] = outer_state
        torch.set_rng_state(self.states_[name])
        self._current_state_name = name
        try:
            yield
        finally:
            if self._current_state_name != name:
                raise RuntimeError(f"rng state {self._current_state_name} was left inside {name}")
            self.states_[name] = torch.get_rng_state()
            # A nested fork may have come back to the outer state and moved it.
            torch.set_rng_state(self.states_.get(outer_name, outer_state))
            self._current_state_name = outer_name

    return fork


def _has_own_generator(host: Host) -> str | None:
    if host.features.separate_rng:
        return f"the {host.backend.name} device has a generator of its own"
    return None


PATCHES = (
    megatron_patch(
        id="rng-tracker-fork",
        target="megatron.core.tensor_parallel.random:CudaRNGStatesTracker.fork",
        kind=Kind.REPLACE,
        make=_make_fork,
        why="device and host share one generator, so every fork seems to disturb the host's state",
        removed_when="torch gives CPU tensors a generator that can be swapped",
        loses="every dropout under tensor parallelism logs a warning",
        skip_when=_has_own_generator,
    ),
)
