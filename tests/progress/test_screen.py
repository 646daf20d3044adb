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
        "/a/b.py:454: UserWarning: a mask is ignored",
        "  warnings.warn(message)",
        "/a/b.py:460: FutureWarning: this will change",
        "WARNING:megatron.core.rerun_state_machine:Result validation enabled",
        OLD,
        "/a/b.py:455: UserWarning: a mask is ignored",
        VALIDATION,
        NEW,
    ) == [
        "[accel_bridge] backend cpu: no accelerator",
        "UserWarning: a mask is ignored",
        VALIDATION.strip(),
        "done       ╸━━━━━━━   12/100  loss  8.350       in 0:21  0.250 s/iteration  41.5 TFLOP/s",
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
    assert fed(NEW, width=40)[0] == "done         12/100  loss  8.350"


def test_time_left_is_that_of_recent_iterations() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=90)
    screen = Screen(console)
    slow = [OLD.replace("12/", f"{n}/").replace("250.0", "9000.0") for n in range(1, 5)]
    fast = [OLD.replace("12/", f"{n}/").replace("250.0", "500.0") for n in range(5, 21)]
    for line in (*slow, *fast):
        screen.feed(line)
    assert "   0:40 left" in screen._line().plain


def test_the_line_says_what_is_done_and_keeps_its_width() -> None:
    """Whatever the numbers are, each part begins in the same column."""
    file, now = io.StringIO(), iter(range(10_000))
    screen = Screen(Console(file=file, force_terminal=True, width=120), lambda: float(next(now)))
    lines = []
    for said in (
        NEW,
        NEW.replace("12/", "13/").replace("8.35", "10.5"),
        " [2026-01-01 00:00:00.1] saving checkpoint at iteration      13 to x in torch_dist",
        "  [2026-01-01 00:00:00.1] successfully saved checkpoint from iteration 13 to x",
        "Evaluating on 32 samples",
        VALIDATION,
        NEW.replace("12/", "100/"),
    ):
        screen.feed(said)
        lines.append(screen._line().plain)
    states = ["training", "training", "saving", "training", "evaluating", "training", "finishing"]
    assert [line.split()[0] for line in lines] == states
    for part in ("loss", "s/iteration", "TFLOP/s"):
        assert len({line.index(part) for line in lines}) == 1, lines


def test_what_may_take_long_is_drawn_at_once() -> None:
    """Nothing else may be said until it has ended."""
    file = io.StringIO()
    screen = Screen(Console(file=file, force_terminal=True, width=120), lambda: 0.0)
    screen.feed(NEW)
    screen.feed("saving checkpoint at iteration      12 to x in torch_dist format")
    assert "saving" in file.getvalue()
