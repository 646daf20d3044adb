"""What a terminal shows of a run: one line that moves, and nothing that matters is lost."""

from __future__ import annotations

import io

from accel_bridge.process.progress import Screen
from accel_bridge.process.progress._screen import fit
from progress.test_lines import NEW, OLD

VALIDATION = " validation loss at iteration 12 | lm loss value: 5.0E+00 | lm loss PPL: 1.5E+02 |"


class Terminal(io.StringIO):
    """What was written, and what stays on it."""

    @property
    def rows(self) -> list[str]:
        """What each row shows at last."""
        return [over(row.split("\r")) for row in self.getvalue().split("\n")]


def over(texts: list[str]) -> str:
    """Texts that were written at one place, one over the other."""
    row = ""
    for text in texts:
        row = text + row[len(text) :]
    return row.rstrip()


def fed(*lines: str, status: int = 0) -> Terminal:
    terminal, now = Terminal(), iter(range(10_000))
    screen = Screen(terminal, lambda: float(next(now)))
    for line in lines:
        screen.feed(line)
    screen.close(status)
    return terminal


def test_what_matters_stays_and_the_rest_is_for_the_log() -> None:
    terminal = fed(
        "building GPT model ...",
        "[accel_bridge] backend cpu: no accelerator",
        "  error_injection_rate ............................ 0",
        "/a/b.py:454: UserWarning: Overriding default arguments",
        "  warnings.warn(message)",
        OLD,
        "/a/b.py:455: UserWarning: Overriding default arguments",
        VALIDATION,
        NEW,
    )
    assert terminal.rows == [
        "[accel_bridge] backend cpu: no accelerator",
        "UserWarning: Overriding default arguments",
        VALIDATION.strip(),
        "iteration 12/100  loss 8.35  0.25 s/iteration  41.5 TFLOP/s  0:22 left",
        "",
    ]


def test_a_failure_ends_with_its_reason() -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: broken"]
    rows = fed("starting", *trace, status=1).rows
    assert rows[-4:] == [*trace, ""]
    quiet = fed(*(f"line {number}" for number in range(30)), "Killed", status=137).rows
    assert quiet[-2] == "Killed"
    assert len(quiet) == 21


def test_a_narrow_terminal_keeps_what_is_most_important() -> None:
    parts = [(0, "iteration 12/100"), (1, "loss 8.35"), (3, "65k tokens/s"), (2, "1:02:03 left")]
    assert fit(parts, 60) == "iteration 12/100  loss 8.35  65k tokens/s  1:02:03 left"
    assert fit(parts, 54) == "12/100  loss 8.35  65k tokens/s  1:02:03 left"
    assert fit(parts, 39) == "12/100  loss 8.35  1:02:03 left"
    assert fit(parts, 20) == "12/100  loss 8.35"
    assert fit(parts, 4) == "12/1"


def test_time_left_is_that_of_recent_iterations() -> None:
    slow = [OLD.replace("12/", f"{n}/").replace("250.0", "9000.0") for n in range(1, 5)]
    fast = [OLD.replace("12/", f"{n}/").replace("250.0", "500.0") for n in range(5, 21)]
    assert "0:40 left" in fed(*slow, *fast).getvalue()
