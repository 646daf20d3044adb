"""After deactivation torch and Megatron hold the objects they had before."""

from __future__ import annotations

from pathlib import Path

from end_to_end.launcher import ROOT, launch


def test_every_object_is_the_original(warm: str) -> None:
    script = Path(__file__).with_name("undo_everything.py")
    done = launch([warm, str(script)], cwd=ROOT)
    assert done.returncode == 0, done.output[-3000:]
    assert "objects compared" in done.output
    assert "left behind: none" in done.output
    assert "with an injected one: torch.cuda.is_available\n" in done.output
