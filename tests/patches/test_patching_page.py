"""docs/extend-patch.md: its first patch is taken from the page and run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extend-patch.md").read_text(encoding="utf-8")


def plugin(source: str, directory: Path) -> dict[str, str]:
    """Variables under which the plugin of the page is loaded."""
    (directory / "disk_patch.py").write_text(source)
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "ACCEL_BRIDGE_PLUGINS": "disk_patch"}


def source() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


def run(
    *words: str, env: dict[str, str], python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_the_first_patch_against_a_path(tmp_path: Path) -> None:
    """And beside it one that reads a parameter which is not there."""
    spec = importlib.util.find_spec("megatron.core")
    assert spec is not None
    site = str(Path(str(spec.origin)).parents[2])
    broken = source().replace('("iteration",)', '("step",)').replace("disk-space", "broken")
    (tmp_path / "broken_patch.py").write_text(broken)
    env = plugin(source(), tmp_path)
    env["ACCEL_BRIDGE_PLUGINS"] += ",broken_patch"
    done = run("-m", "accel_bridge", "patches", "--json", "--against", site, env=env)
    assert done.returncode == 1, done.stderr
    fits = {row["id"]: row["fit"] for row in json.loads(done.stdout)["patches"]}
    assert (fits.pop("disk-space"), fits.pop("broken")) == ("ok", "signature changed")
    assert set(fits.values()) <= {"ok", "not needed"}


#: Imports the patched module and calls it as Megatron does; nothing is trained or written.
CALL = """
import accel_bridge.auto
from megatron.training import checkpointing
try:
    checkpointing.save_checkpoint(2, None, None, None, num_floating_point_operations_so_far=0)
except Exception as error:
    print("upstream was called:", type(error).__name__)
"""


@pytest.mark.megatron
def test_the_first_patch_at_work_and_broken(tmp_path: Path, warm: str) -> None:
    done = run("-c", CALL, env=plugin(source(), tmp_path), python=warm)
    assert re.search(r"\[accel_bridge\] iteration 2: \d+ GB free", done.stdout + done.stderr)
    assert "upstream was called" in done.stdout

    broken = source().replace('"iteration"', '"step"')
    done = run("-c", CALL, env=plugin(broken, tmp_path), python=warm)
    warning = re.search(r"patch 'disk-space' failed: .* has no parameter step", PAGE)
    assert warning is not None
    assert warning[0] in done.stdout + done.stderr
    assert "GB free" not in done.stdout + done.stderr
    assert "upstream was called" in done.stdout
