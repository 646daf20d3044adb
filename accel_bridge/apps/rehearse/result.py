"""What a rank leaves: numbers, by which the command makes its report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from accel_bridge.apps.rehearse import memory
from accel_bridge.apps.rehearse.allocator import simulate

if TYPE_CHECKING:
    from accel_bridge.apps.rehearse.mode import Rehearsal


def result(session: Any, mode: Rehearsal, seconds: dict[str, Any]) -> dict[str, Any]:
    """The file of a rank.

    :param session: whose it is (:class:`~accel_bridge.apps.rehearse.session.Session`).
    """
    ledger = mode.ledger
    classes = memory.classify(ledger)
    usage = simulate(ledger.events, ledger.sizes)
    step, phase, module, operation = ledger.peak_mark
    last = ledger.steps[-1] if ledger.steps else 0
    return {
        "rank": session.rank,
        "world": dist.get_world_size() if dist.is_initialized() else 1,
        "groups": session.groups,
        "parameters": session.parameters,
        "peak_bytes": usage.allocated,
        "reserved_bytes": usage.reserved,
        "peak": {"step": step, "phase": phase, "module": module, "operation": operation},
        "memory": memory.composition(ledger, classes, ledger.peak_event),
        "activations": memory.by_module(ledger, classes, ledger.peak_event),
        "curve": memory.curve(ledger, classes, last),
        "after_steps": session.step_peaks,
        "own_groups": mode.collectives.groups,
        "calls": [call.row() for call in mode.collectives.calls],
        "communicators": sorted({call.group for call in mode.collectives.calls}),
        "work": mode.work.kinds,
        "assumed": Counter(mode.assumed).most_common(20),
        "notes": session.notes,
        "remedies": session.remedies,
        "schedule": session.schedule,
        "seconds": seconds,
    }
