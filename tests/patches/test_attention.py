"""The local spec's attention on Transformer Engine's: the results of upstream's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

WORKER = str(Path(__file__).with_name("attention_worker.py"))
TOLERANCE = 2e-5


def test_it_equals_upstreams(warm: str) -> None:
    """Masks, windows, sinks, scales and flags that the environment would have to repeat."""
    done = subprocess.run([warm, WORKER], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert max(found["differences"].values()) < TOLERANCE, found["differences"]
    assert min(found["injected"].values()) > 100 * TOLERANCE, found["injected"]
    # The checkpoints of the local spec are as they were, and FSDP knows the class by its name.
    assert found["state"] == {"causal": [], "sink": ["softmax_offset"]}
    assert found["kinds"] == ["DotProductAttention", "TEDotProductAttention", True]
