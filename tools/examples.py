"""Runs the tutorials of docs/examples as they stand, and notes how long they took.

    python tools/examples.py [NAME...]

Each runs in a temporary folder, at the size that `bash run.sh` has. The picture that it draws goes
beside its script; the seconds and what the picture shows go to docs/examples/examples.json, of
which the tables of docs/examples/README.md are made (`make docs`).
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "docs" / "examples"
FACTS: Final = FOLDER / "examples.json"

_LOSS: Final = re.compile(r"iteration\s+\d+/.*?lm loss: ([-+.\dEe]+)")


def read() -> dict[str, dict[str, Any]]:
    """Folder of a tutorial -> what is known of it."""
    facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return facts


def table() -> str:
    """A Markdown table of all tutorials."""
    lines = ["| tutorial | command | CPU minutes | curve |\n", "|---|---|---|---|\n"]
    for name, fact in read().items():
        cells = (
            f"[{fact['title']}]({name}/run.sh)",
            f"`bash docs/examples/{name}/run.sh`",
            f"{fact['cpu'] / 60:.1f}" if "cpu" in fact else "not measured",
            f'<img src="{name}/curve.png" alt="{fact["alt"]}" width="240">',
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def shown(folder: Path) -> str:
    """What the picture of a run shows, for those who do not see it."""
    parts = []
    for log in sorted(folder.glob("**/*.log")):
        losses = _LOSS.findall(log.read_text(encoding="utf-8", errors="replace"))
        if losses:
            first, last = float(losses[0]), float(losses[-1])
            name = "" if log.stem == "training" else f"{log.stem}: "
            parts.append(f"{name}loss {first:.2f} to {last:.2f} in {len(losses)} iterations")
    return "; ".join(parts)


def keep(name: str, folder: Path, **measured: object) -> None:
    """Put a run's picture beside its script, and note what is known of it.

    :param folder: what the tutorial wrote.
    """
    shutil.copyfile(folder / "curve.png", FOLDER / name / "curve.png")
    facts = read()
    facts[name] |= {"alt": shown(folder), "date": str(date.today()), **measured}
    FACTS.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def run(name: str) -> None:
    """Run one.

    :raises SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="examples-") as place:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        log = Path(place) / "output.txt"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with log.open("w") as output:
            status = subprocess.call(
                ["bash", FOLDER / name / "run.sh"],
                cwd=place,
                env={**os.environ, "PATH": path},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        seconds = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if status:
            sys.exit(log.read_text(errors="replace")[-4000:] + f"\n{name} ended with {status}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        keep(name, Path(place) / name, seconds=round(seconds), cpu=round(cpu))
    print(f"{name}: {seconds:.0f} s, {cpu:.0f} s of processor time", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or read():
        run(name)
