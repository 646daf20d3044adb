"""Kill and resume a training run again and again, and compare it with an undisturbed one.

    python tests/benchmarks/soak_resume.py [--cycles 30] [--processes 1]

Each cycle starts the same command and kills a rank with SIGKILL at another moment: in an
iteration, in a save, at the start. Every loss that is logged must equal the undisturbed run's, to
the last digit, every iteration must be logged by some cycle, and no rank may be left behind.
Prints one line a cycle; exits 1 at a difference.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from end_to_end.launcher import MODEL, SCHEDULE  # noqa: E402

LOSS = re.compile(r"iteration\s+(\d+)/.*?lm loss: ([-+.\dEe]+|nan|inf)")
#: Lines after which a run is killed, some fractions of a second later.
MOMENTS = ("iteration  ", "saving checkpoint", "successfully saved", "training ...")
#: A cycle gets no further than this; the last run, which nobody kills, does the rest.
ITERATIONS_A_CYCLE = 12


def command(iterations: int, processes: int, folder: Path | None) -> list[str]:
    """The one command; with ``folder`` it saves there every second iteration and resumes."""
    words = [sys.executable, "-m", "accel_bridge", "pretrain", "--nproc-per-node", str(processes)]
    words += ["--", *MODEL, *SCHEDULE, "--train-iters", str(iterations)]
    words += ["--lr-decay-iters", str(iterations)]
    if folder is not None:
        words += ["--save", str(folder), "--load", str(folder), "--save-interval", "2"]
    return words


def ranks(launcher: int) -> list[int]:
    """Pids of the ranks: the launcher's children, or itself where it is the only process."""
    if "accel_bridge.launch" not in _command_line(launcher):
        return [launcher]
    path = Path(f"/proc/{launcher}/task/{launcher}/children")
    children = [int(word) for word in path.read_text().split()] if path.exists() else []
    trainers = [pid for pid in children if "pretrain_gpt" in _command_line(pid)]
    return trainers or [launcher]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class Kill:
    """When a rank is killed: so many seconds after a line of the log, and which one."""

    line: str
    seconds: float
    choose: random.Random


@dataclass(frozen=True)
class Done:
    """What a run logged, loss by iteration, and whether a rank of it was killed."""

    losses: dict[int, str]
    killed: bool


def run(words: list[str], kill: Kill | None) -> Done:
    """Run the command, and kill a rank of it where that is asked."""
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    losses: dict[int, str] = {}
    lines, known = [], [process.pid]
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        found = LOSS.search(line)
        if found:
            losses[int(found[1])] = found[2]
        if kill is not None and kill.line in line:
            time.sleep(kill.seconds)
            known = [process.pid, *ranks(process.pid)]
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(kill.choose.choice(known[1:]), signal.SIGKILL)
            kill = None
    status = process.wait()
    killed = status != 0
    time.sleep(0.2)
    left = [pid for pid in known if "pretrain_gpt" in _command_line(pid)]
    assert not left, f"left behind: {left}"
    if status not in (0, 1, -signal.SIGKILL, 128 + signal.SIGKILL):
        print("".join(lines[-20:]))
        raise SystemExit(f"unexpected status {status}")
    return Done(losses, killed)


def soak(cycles: int, processes: int, seed: int) -> int:
    """Kill ``cycles`` times, then finish; the number of losses that differ or are missing."""
    choose = random.Random(seed)
    iterations = ITERATIONS_A_CYCLE * cycles
    expected = run(command(iterations, processes, None), None).losses
    assert len(expected) == iterations, "the undisturbed run did not finish"
    wrong, seen, killed, cycle = 0, set[int](), 0, 0
    with tempfile.TemporaryDirectory() as name:
        words = command(iterations, processes, Path(name))
        while iterations not in seen:
            moment = MOMENTS[cycle % len(MOMENTS)]
            kill = Kill(moment, choose.uniform(0, 0.4), choose) if killed < cycles else None
            done = run(words, kill)
            losses, killed = done.losses, killed + done.killed
            differ = {n: (loss, expected[n]) for n, loss in losses.items() if loss != expected[n]}
            wrong += len(differ)
            seen |= losses.keys()
            shown = f"iterations {min(losses)}..{max(losses)}" if losses else "no iteration"
            end = f"killed at {moment!r}" if done.killed else "not killed"
            print(f"cycle {cycle}: {end}: {shown}; {differ or 'equal'}", flush=True)
            cycle += 1
    missing = expected.keys() - seen
    print(f"{killed} kills, {len(seen)} iterations, {wrong} differ, {len(missing)} missing")
    assert killed == cycles, "the run ended before it was killed often enough"
    return wrong + len(missing)


def main() -> int:
    """Read the command line and soak; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cycles", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return 1 if soak(options.cycles, options.processes, options.seed) else 0


if __name__ == "__main__":
    raise SystemExit(main())
