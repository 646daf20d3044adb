"""``accel-bridge patches``, alone and with a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge.apps.cli import patches

SCRIPT = """
import sys
from megatron.core.jit import disable_jit_fuser
disable_jit_fuser()
print("from the script", sys.argv[1:])
raise SystemExit(3)
"""


def test_a_scripts_patches(forked: Python, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = forked("-m", "accel_bridge", "patches", "--json", str(script), "--json", "x")
    assert done.returncode == 3, done.stderr
    assert "from the script ['--json', 'x']" in done.stderr
    states = {patch["id"]: patch["state"] for patch in json.loads(done.stdout)["patches"]}
    assert states["arguments"] == "applied"


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (4, 4), ("no data", 1)])
def test_a_scripts_exit_status(
    code: object, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(words: list[str]) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(patches, "run_script", run)
    assert patches._run_script(["script.py"]) == status
    assert ("no data" in capsys.readouterr().err) == (code == "no data")


def test_no_such_script(python: Python) -> None:
    done = python("-m", "accel_bridge", "patches", "nothing_here.py")
    assert done.returncode == 2
    assert "there is no script 'nothing_here.py'" in done.stderr
    assert done.stdout == ""
