""".ci/run ends with pytest's summary and its exit status."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from distribution.support import ROOT

FAILED = "=== 1 failed, 2 passed in 3.45s ==="
LONG = "=== 5 passed, 1 warning in 754.20s (0:12:34) ==="


@pytest.mark.parametrize(("summary", "status"), [(FAILED, 2), (LONG, 0), (LONG, 2)])
def test_its_last_line_is_the_summary(tmp_path: Path, summary: str, status: int) -> None:
    fake = tmp_path / "make"
    after = "echo 'make: *** [Makefile:1: test] Error 1' >&2" if status else ""
    fake.write_text(f"#!/bin/sh\necho $1\necho '{summary}'\n{after}\nexit {status}\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", str(ROOT / ".ci/run")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CI": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "test", "it must call the README's test command"
    assert lines[-1] == summary
    assert done.returncode == status
