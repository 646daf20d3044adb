"""`accel-bridge pretrain` with a Megatron that is older than its own script."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge.errors import BridgeError
from accel_bridge.pretrain import command as script


class Versions:
    """Plugins that know one version."""

    def __init__(self, version: str | None) -> None:
        self.items = [type("Found", (), {"item": ("megatron-core", version)})]

    def versions(self) -> Versions:
        return self


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty checkout of 0.16.1."""
    monkeypatch.setattr(script, "load_plugins", lambda: Versions("0.16.1"))
    monkeypatch.setattr(script, "_directory", lambda: tmp_path)
    return tmp_path


def test_an_older_checkout_trains_with_its_own_script(megatron: Path) -> None:
    (megatron / "pretrain_gpt.py").touch()
    assert script.script() == (str(megatron / "pretrain_gpt.py"),)


def test_an_entry_point_under_torchrun_runs_it_too(megatron: Path) -> None:
    (megatron / "pretrain_gpt.py").write_text("raise SystemExit(__name__)")
    with pytest.raises(SystemExit, match="__main__"):
        script.run_older("gpt")


def test_a_hybrid_model_trains_with_the_script_of_its_time(megatron: Path) -> None:
    (megatron / "pretrain_mamba.py").touch()
    assert script.script("hybrid") == (str(megatron / "pretrain_mamba.py"),)
    (megatron / "pretrain_hybrid.py").touch()
    assert script.script("hybrid") == (str(megatron / "pretrain_hybrid.py"),)


def test_an_older_wheel_has_none(megatron: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = r"(?s)0\.16\.1 has no script.*evidence:.*no pretrain_gpt\.py.*next:.*core_v0\.16\.1"
    with pytest.raises(BridgeError, match=told):
        script.script()
    monkeypatch.setattr(script, "_directory", lambda: None)
    with pytest.raises(BridgeError, match=r"no megatron\.training"):
        script.script()


@pytest.mark.parametrize("version", ["0.19.0", "0.20.0rc1", "1.0", None])
def test_a_newer_one_takes_ours(
    megatron: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setattr(script, "load_plugins", lambda: Versions(version))
    assert not script.run_older("gpt")
    assert script.script() == script.entry_point("gpt")
    assert script.script("hybrid") == script.entry_point("hybrid")


def test_the_installed_one_is_found() -> None:
    directory = script._directory()
    assert directory is not None
    assert (directory / "megatron" / "training").is_dir()
