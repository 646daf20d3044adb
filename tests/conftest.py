"""Fixtures for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_site import Python, Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site of its own; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def python() -> Python:
    """Runs this interpreter in a child process, with further environment variables.

    The ``ACCEL_BRIDGE_*`` variables of the person who runs the tests are not passed on.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("ACCEL_BRIDGE_")
    }

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**inherited, **environ},
            check=False,
        )

    return run
