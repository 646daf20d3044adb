"""The marks that `make check` selects by are complete."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_only_a_marked_test_may_train() -> None:
    with pytest.raises(RuntimeError, match="mark it with @pytest"):
        subprocess.run(["train", "--micro-batch-size", "1"], check=False)


def test_only_a_marked_test_may_import_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    with pytest.raises(RuntimeError, match="imports Megatron"):
        import megatron.core  # noqa: F401


@pytest.mark.megatron
def test_a_marked_test_may() -> None:
    done = subprocess.run(["echo", "--micro-batch-size"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"--micro-batch-size\n"


@pytest.mark.usefixtures("finished_runs")
def test_a_fixture_that_runs_megatron_brings_the_mark(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("megatron")
