"""Ranks of recipes: forks of one server, which end together."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import recipe_ranks
from recipe_ranks import Nest

SCRIPT = """
import os, sys, time
import accel_bridge
import torch.distributed as dist
loaded = "megatron.training" in sys.modules
dist.init_process_group("nccl")
numbers = [None] * dist.get_world_size()
dist.all_gather_object(numbers, int(os.environ["RANK"]))
print(numbers, accel_bridge.current() is not None, loaded, flush=True)
if sys.argv[1] == "fails" and numbers[-1] == dist.get_rank():
    raise SystemExit(3)
if sys.argv[1] != "ends":
    time.sleep(60)
dist.destroy_process_group()
"""


@pytest.mark.megatron
@pytest.mark.conformance
def test_ranks_run_and_end_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_ranks, "PATIENCE", 0.5)
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SCRIPT)
    nest = Nest(tmp_path, {**os.environ, "ACCEL_BRIDGE_BACKEND": "cpu"})
    try:
        assert nest.run([str(script), "ends"], 2, {"WORD": "x"}, log, 60) == 0
        assert log.read_text().splitlines()[-2:] == ["[0, 1] True True"] * 2
        began = time.monotonic()
        assert nest.run([str(script), "fails"], 2, {}, log, 60) == 3
        assert nest.run([str(script), "hangs"], 1, {}, log, 2) == -1
        assert time.monotonic() - began < 30
    finally:
        nest.close()
