"""Fixtures that every test shares."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_site import Python, Site

#: Fixtures of the parity suite (no torch, no Megatron is imported), and checkpoints that tests of
#: training on every device start from.
pytest_plugins = ["accel_bridge.apps.testing", "end_to_end.checkpoints"]


@pytest.fixture(autouse=True)
def _no_variables_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not depend on the ACCEL_BRIDGE_* variables of whoever runs them."""
    for name in list(os.environ):
        if name.startswith("ACCEL_BRIDGE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder that acts as site-packages; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def python() -> Python:
    """Runs this interpreter in a child process, with further environment variables."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environ},
            check=False,
        )

    return run
