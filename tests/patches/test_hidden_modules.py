"""A CUDA library that cannot work here, and has no shim, is hidden from Megatron."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import accel_bridge
accel_bridge.activate()
try:
    import transformer_engine
except ImportError:
    print("hidden")
accel_bridge.deactivate()
import transformer_engine
print("back:", transformer_engine.WORD)
"""


@pytest.mark.slow
def test_hidden_with_one_line_and_back_after_undo(tmp_path: Path) -> None:
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("WORD = 'itself'\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={
            "PYTHONPATH": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "ACCEL_BRIDGE_LIBRARIES": "none",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["hidden", "back: itself"], done.stderr[-2000:]
    assert "transformer_engine is installed but cannot work on CPU: hidden" in done.stderr
