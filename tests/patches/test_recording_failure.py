"""A recording that cannot be written fails the run at its end, not before its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge._errors import BridgeError
from accel_bridge.patches.recording import Failure, _make_pretrain

FULL = BridgeError("The recording cannot be written.", evidence="full", next="free room")


def run(training: Callable[[Failure], Any]) -> Any:
    """Megatron's ``pretrain``, patched, with another body."""
    failure = Failure()
    host = SimpleNamespace(once=lambda key, make: failure)
    context: Any = SimpleNamespace(host=host, original=lambda: training(failure))
    result = _make_pretrain(context)()
    assert not failure.waits
    return result


def test_it_fails_after_the_last_checkpoint() -> None:
    done = []

    def training(failure: Failure) -> None:
        assert failure.waits
        failure.error = FULL
        done.append("checkpoint")

    with pytest.raises(BridgeError, match="cannot be written"):
        run(training)
    assert done == ["checkpoint"]


def test_a_run_that_is_recorded_ends_well() -> None:
    assert run(lambda failure: 7) == 7
