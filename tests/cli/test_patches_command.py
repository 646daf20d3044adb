"""``accel-bridge patches``, alone and with a script."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_site import Python, Site

from accel_bridge.apps.cli import patches
from accel_bridge.apps.cli.main import main
from accel_bridge.patching import State

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


BROKEN = {
    "syntax": ("def f(:", 1),
    "raises": ("raise RuntimeError('half installed')", 1),
    "exits": ("raise SystemExit(0)", 1),
    "lacks": ("import no_such_package_of_anyone", 1),
    "a name": ("from os import no_such_name", 1),
    "absent": (None, 0),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_framework_is_a_failure(site: Site, name: str) -> None:
    source, failures = BROKEN[name]
    (site.directory / "frame_of_six").mkdir()
    (site.directory / "frame_of_six" / "__init__.py").touch()
    if source is not None:
        (site.directory / "frame_of_six" / "core.py").write_text(source)
    patch = SimpleNamespace(module="frame_of_six.core", optional=False)
    status = SimpleNamespace(patch=patch, state=State.REGISTERED)
    bridge: Any = SimpleNamespace(statuses=[status])
    assert len(patches.import_targets(bridge)) == failures


@pytest.mark.parametrize("state", [State.REGISTERED, State.SKIPPED])
def test_a_module_of_another_version_is_no_warning(state: State, capsys) -> None:
    """A skipped patch's module may be missing; one that would be patched is told of."""
    patch = SimpleNamespace(module="frame_of_seven.core", optional=False)
    bridge: Any = SimpleNamespace(statuses=[SimpleNamespace(patch=patch, state=state)])
    assert not patches.import_targets(bridge)
    assert bool(capsys.readouterr().err) is (state is State.REGISTERED)


def test_its_exit_status(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(patches, "activate", lambda: SimpleNamespace(statuses=()))
    monkeypatch.setattr(patches, "import_targets", lambda bridge: ["frame.core: SyntaxError"])
    assert main(["patches"]) == 1
    assert "frame.core: SyntaxError" in capsys.readouterr().err
