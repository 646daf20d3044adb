"""Cache and temporary directories of torch, Triton, inductor and others that cannot be used."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge.process.cache import USES, directories, explain


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_each_is_named(name: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/proc/none/there")
    error: Exception = PermissionError(errno.EACCES, "Permission denied", "/proc/none/there/x")
    if wrapped:
        outer = RuntimeError("backend failed")
        outer.__cause__ = error
        error = outer
    told = explain(error)
    assert told.next.startswith(f"export {name}=")
    assert USES[name] in told.what


def test_a_directory_that_can_be_used_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert explain(FileNotFoundError(errno.ENOENT, "No such file", f"{tmp_path}/data.bin")) is None
    assert explain(FileNotFoundError(errno.ENOENT, "No such file", "/home/data.bin")) is None
    assert explain(ValueError("[Errno 2] No such file or directory: '/proc/none'")) is None


def test_what_training_needs_has_defaults() -> None:
    assert list(directories({})) == list(USES)[:4]


def test_the_user_sees_three_parts(forked: Python, tmp_path: Path) -> None:
    """torch.compile's decorators make inductor's directory when Megatron is imported."""
    script = tmp_path / "script.py"
    script.write_text("import os, torch._inductor.runtime.cache_dir_utils as it\nit.cache_dir()\n")
    environ = {"TORCHINDUCTOR_CACHE_DIR": "/proc/none/there", "ACCEL_BRIDGE_BACKEND": "cpu"}
    done = forked("-m", "accel_bridge", "run", str(script), **environ)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "next:     export TORCHINDUCTOR_CACHE_DIR=" in done.stderr
