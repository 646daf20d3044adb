"""The logged losses of a run's first iterations are their own."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.patches import training_log
from accel_bridge.patching import Argument


@pytest.mark.parametrize(
    ("iteration", "interval", "first", "passed"),
    [(7, 1, True, False), (7, 2, True, True), (8, 2, True, False), (9, 1, False, False)],
)
def test_a_line_that_closes_an_interval_starts_a_new_mean(
    iteration: int, interval: int, first: bool, passed: bool
) -> None:
    seen: list[bool] = []

    def upstream(loss: Any, iteration: int, is_first_iteration: bool = False) -> None:
        seen.append(is_first_iteration)

    signature = inspect.signature(upstream)
    context = SimpleNamespace(
        original=upstream,
        module=SimpleNamespace(get_args=lambda: SimpleNamespace(log_interval=interval)),
        argument=lambda name: Argument.find(signature, name),
    )
    made = training_log._make(context)  # type: ignore[arg-type]
    made({}, iteration, is_first_iteration=first)
    made({}, iteration, first)
    assert seen == [passed, passed]
