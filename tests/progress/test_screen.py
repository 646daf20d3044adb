"""What a terminal shows of a run: one line that moves, and nothing that matters is lost."""

from __future__ import annotations

import io

import pytest

from accel_bridge.progress import Screen, facts_line
from accel_bridge.progress._screen import clock_time, fit, short
from progress.test_lines import NEW, OLD

SEQUENCE = "  seq_length ...................................... 1024"
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


def test_the_line_says_what_one_asks_first() -> None:
    shown = fed(SEQUENCE, OLD, facts_line(12, 100, 10.0, 60.5, 79.1)).getvalue()
    expected = "\r12/100  loss 8.35  65.5k tokens/s  41.5 TFLOP/s  60.5/79.1 GB  0:22 left"
    assert expected in shown


def test_it_is_plain_text() -> None:
    """No colours and no escapes: it works with NO_COLOR, TERM=dumb and in every multiplexer."""
    terminal = fed("\x1b[31mred\x1b[0m", SEQUENCE, OLD, f"WARNING: \x1b[1m{'x' * 300}", VALIDATION)
    assert "\x1b" not in terminal.getvalue()


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


def test_an_error_in_three_parts_is_not_followed_by_a_tail() -> None:
    error = ["accel-bridge: error: rank 0: no data", "  evidence: x.bin", "  next:     make it"]
    rows = fed(*(f"line {number}" for number in range(30)), *error, status=2).rows
    assert rows == [error[0], *error[1:], ""]


@pytest.mark.parametrize("status", [130, 143])
def test_who_stops_a_run_needs_no_reason(status: int) -> None:
    assert fed("line", OLD, "Traceback (most recent call last):", status=status).rows[-1] == ""


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


def test_numbers_are_short() -> None:
    counts = [0.4, 950, 12_345, 999_600, 4_560_000, 2.5e10, 4.1e14]
    assert [short(one) for one in counts] == ["0", "950", "12.3k", "1M", "4.56M", "25 G", "410 T"]
    times = [7, 750, 3723, 50 * 3600]
    assert [clock_time(one) for one in times] == ["0:07", "12:30", "1:02:03", "2d 2h"]
