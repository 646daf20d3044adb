"""A recording that cannot be written fails the run at its end, not before its last checkpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.errors import BridgeError
from accel_bridge.patches.recording import Failure, _Held, _make_pretrain

FULL = BridgeError("The recording cannot be written.", evidence="full", next="free room")


def run(training: Callable[[Failure], Any]) -> Any:
    """Megatron's ``pretrain``, patched, with another body."""
    held = _Held()
    host = SimpleNamespace(once=lambda key, make: held)
    context: Any = SimpleNamespace(host=host, original=lambda: training(held.failure))
    result = _make_pretrain(context)()
    assert not held.failure.waits
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


def test_an_error_in_an_exit_function_has_a_status_and_leaves_the_others() -> None:
    """Python alone prints a traceback, and ends with status 0."""
    code = """if True:
        import atexit
        from accel_bridge.errors import BridgeError
        from accel_bridge.process.endings import end_with
        def finish():
            atexit.unregister(finish)
            end_with(BridgeError("full", evidence="no room", next="free some"))
        atexit.register(print, "the others ran")
        atexit.register(finish)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "the others ran\n")
    assert done.stderr.startswith("accel-bridge: error: full\n  evidence: no room")
    assert "Traceback" not in done.stderr
