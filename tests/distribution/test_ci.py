""".ci/run checks everything, ends with pytest's summary, and fails when any part fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from distribution.support import ROOT

FAILED = "=== 1 failed, 2 passed in 3.45s ==="
LONG = "=== 5 passed, 1 warning in 754.20s (0:12:34) ==="

#: A make that says what it was asked for, and fails as the real one does.
MAKE = """\
#!/bin/sh
echo "make $1"
case $1 in lint) status=$LINT;; test) status=$TEST; echo "$SUMMARY";; esac
[ $status = 0 ] || echo "make: *** [Makefile:1: $1] Error 1" >&2
exit $status
"""


@pytest.mark.parametrize(
    ("summary", "lint", "test"), [(LONG, 0, 0), (FAILED, 0, 2), (LONG, 0, 2), (LONG, 3, 0)]
)
def test_its_last_line_is_the_summary(tmp_path: Path, summary: str, lint: int, test: int) -> None:
    fake = tmp_path / "make"
    fake.write_text(MAKE)
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    asked = {"SUMMARY": summary, "LINT": str(lint), "TEST": str(test)}
    done = subprocess.run(
        ["bash", str(ROOT / ".ci/run")],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "CI": "true", **asked},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("make ")][:2] == ["make lint", "make test"]
    assert lines[-1] == summary
    assert done.returncode == (test or lint)
