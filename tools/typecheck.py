"""Strict type check of the package: python tools/typecheck.py [MYPY OPTIONS].

The package's parts are at the top level of the repository (backends/ is accel_bridge.backends), but
mypy expects directories named as they are imported. A temporary directory links them under those
names.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("backends", "patches", "pretrain")
#: Wrong kernel calls; mypy must refuse each of them.
CALLS = ROOT / "tests/kernels/typed_calls.py"


def main() -> int:
    """mypy's exit status."""
    with tempfile.TemporaryDirectory() as directory:
        # As an installed package would be laid out.
        package = Path(directory) / "accel_bridge"
        package.mkdir()
        for entry in (*(ROOT / "accel_bridge").iterdir(), *(ROOT / part for part in PARTS)):
            if entry.name != "__pycache__":
                (package / entry.name).symlink_to(entry)
        (Path(directory) / CALLS.name).symlink_to(CALLS)
        options = ["--config-file", str(ROOT / "pyproject.toml")]
        options += ["--cache-dir", str(ROOT / ".mypy_cache"), *sys.argv[1:]]
        command = [sys.executable, "-m", "mypy", *options]
        command += ["-p", "accel_bridge", "-m", CALLS.stem]
        return subprocess.run(command, cwd=directory, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
