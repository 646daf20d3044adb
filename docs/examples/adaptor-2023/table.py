"""Two machines' logs of the same commands as the table of the 2023 adaptor's guide.

    python table.py COMPETITOR_DIRECTORY NPU_DIRECTORY

Each directory holds NAME.log, Megatron's training log. Losses are those of the last iteration that
both machines logged; times are medians without the first three iterations. The exit status is 1
where a log is on one machine only, or holds no iteration.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import median

STEP = re.compile(
    r"iteration\s+(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+).*?lm loss: ([-+.\dEe]+)"
)


def steps(log: Path) -> dict[int, tuple[float, float]]:
    """Iteration -> (loss, seconds)."""
    found = STEP.findall(log.read_text(encoding="utf-8", errors="replace"))
    return {int(number): (float(loss), float(ms) / 1e3) for number, ms, loss in found}


def row(name: str, competitor: Path, npu: Path) -> tuple[str, ...] | None:
    """One line of the table, or None where there is nothing to compare."""
    left, right = (steps(directory / f"{name}.log") for directory in (competitor, npu))
    both = sorted(left.keys() & right.keys())
    if not both:
        return None
    seconds = [median([log[n][1] for n in both[3:] or both]) for log in (left, right)]
    last = both[-1]
    return (
        name,
        f"{left[last][0]:.4f}",
        f"{right[last][0]:.4f}",
        f"{seconds[0]:.3f}",
        f"{seconds[1]:.3f}",
    )


def main(competitor: Path, npu: Path) -> int:
    """Print the table."""
    names = [{path.stem for path in directory.glob("*.log")} for directory in (competitor, npu)]
    print("| name | competitor loss | NPU loss | competitor s/step | NPU s/step |")
    print("|---|---|---|---|---|")
    missing = sorted(names[0] ^ names[1])
    for name in sorted(names[0] & names[1]):
        cells = row(name, competitor, npu)
        if cells is None:
            missing.append(name)
        else:
            print(f"| {' | '.join(cells)} |")
    for name in missing:
        print(f"{name}: no iteration that both machines logged", file=sys.stderr)
    return 1 if missing or not names[0] else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
