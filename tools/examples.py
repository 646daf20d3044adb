"""Runs the tutorials of docs/examples as they stand, and notes how long they took.

    python tools/examples.py [NAME...]

Each runs in a temporary folder, at the size that `bash run.sh` has. The picture that it draws
goes beside its script. The seconds go to docs/examples/examples.json, of which the tables of
docs/examples/README.md are made (`make docs`).
"""

from __future__ import annotations

import json
import os
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


def read() -> dict[str, dict[str, Any]]:
    """Folder of a tutorial -> what is known of it."""
    facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return facts


def table(title: str, head: tuple[str, str, str, str]) -> str:
    """A Markdown table of all tutorials.

    :param title: the key of the title in this language.
    :param head: names of the columns.
    """
    lines = [f"| {' | '.join(head)} |\n", "|---|---|---|---|\n"]
    for name, fact in read().items():
        cells = (
            f"[{fact[title]}]({name}/run.sh)",
            f"`bash docs/examples/{name}/run.sh`",
            f"{fact['cpu'] / 60:.1f}" if "cpu" in fact else "-",
            f'<img src="{name}/curve.png" alt="{fact["alt"]}" width="240">'
            if "alt" in fact
            else "-",
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def run(name: str) -> None:
    """Run one, keep its picture and its time.

    :raises SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="examples-") as place:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        log = Path(place) / "output.log"
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
        shutil.copyfile(Path(place) / name / "curve.png", FOLDER / name / "curve.png")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    facts = read()
    facts[name] |= {"seconds": round(seconds), "cpu": round(cpu), "date": str(date.today())}
    FACTS.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{name}: {seconds:.0f} s, {cpu:.0f} s of processor time", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or read():
        run(name)
