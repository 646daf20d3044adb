"""What a terminal shows of a run: one line that moves, and nothing that matters is lost."""

from __future__ import annotations

import io

from rich.console import Console

from accel_bridge.process.progress.screen import Screen
from progress.terminal import rows_of
from progress.test_lines import NEW, OLD

VALIDATION = " validation loss at iteration 12 | lm loss value: 5.0E+00 | lm loss PPL: 1.5E+02 |"


def fed(*lines: str, status: int = 0, width: int = 90) -> list[str]:
    """The rows that a terminal shows at the end."""
    file, now = io.StringIO(), iter(range(10_000))
    console = Console(file=file, force_terminal=True, width=width)
    screen = Screen(console, lambda: float(next(now)))
    for line in lines:
        screen.feed(line)
    screen.close(status)
    return rows_of(file.getvalue())[0]


def test_what_matters_stays_and_the_rest_is_for_the_log() -> None:
    assert fed(
        "building GPT model ...",
        "[accel_bridge] backend cpu: no accelerator",
        "  error_injection_rate ............................ 0",
        "/a/b.py:454: UserWarning: Overriding default arguments",
        "  warnings.warn(message)",
        OLD,
        "/a/b.py:455: UserWarning: Overriding default arguments",
        VALIDATION,
        NEW,
    ) == [
        "[accel_bridge] backend cpu: no accelerator",
        "UserWarning: Overriding default arguments",
        VALIDATION.strip(),
        "iteration 12/100  loss 8.35  0:22 left  0.25 s/iteration  41.5 TFLOP/s",
        "",
    ]


def test_a_failure_ends_with_its_reason() -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: broken"]
    rows = fed("starting", *trace, status=1)
    assert rows[-4:] == [*trace, ""]
    quiet = fed(*(f"line {number}" for number in range(30)), "Killed", status=137)
    assert quiet[-2] == "Killed"
    assert len(quiet) == 21


def test_a_narrow_terminal_keeps_what_is_most_important() -> None:
    row = fed(NEW, width=40)[0]
    assert row.startswith("iteration 12/100  loss 8.35  0:22 left")
    assert len(row) <= 40


def test_time_left_is_that_of_recent_iterations() -> None:
    slow = [OLD.replace("12/", f"{n}/").replace("250.0", "9000.0") for n in range(1, 5)]
    fast = [OLD.replace("12/", f"{n}/").replace("250.0", "500.0") for n in range(5, 21)]
    assert "0:40 left" in fed(*slow, *fast)[0]
