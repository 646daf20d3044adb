"""The marks that `make check` selects by are complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_only_a_marked_test_may_train() -> None:
    with pytest.raises(RuntimeError, match="mark it with @pytest"):
        subprocess.run(["train", "--micro-batch-size", "1"], check=False)


def test_only_a_marked_test_may_import_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    with pytest.raises(RuntimeError, match="imports Megatron"):
        import megatron.core  # noqa: F401


@pytest.mark.megatron
def test_no_module_may_import_megatron_when_it_is_collected(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    path = tmp_path / "test_injected.py"
    path.write_text("import megatron.core\n")
    module = pytest.Module.from_parent(request.session, path=path)
    report = request.config.hook.pytest_make_collect_report(collector=module)
    assert report.outcome == "failed"
    assert "imports Megatron when it is collected" in report.longreprtext


def test_what_runs_note_goes_with_pytests_own_directory(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert Path(os.environ["XDG_STATE_HOME"]).is_relative_to(tmp_path_factory.getbasetemp())
