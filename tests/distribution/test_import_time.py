"""``import accel_bridge.auto`` costs little beside ``import torch``."""

from __future__ import annotations

import pytest
from plugin_site import Python

#: Share of the processor time of ``import torch`` in the same process: seconds say little on a
#: machine that does other things.
LIMIT = 0.2

# A full collection of what torch has made may fall into either part.
IMPORT = """
import gc, time
gc.disable()
start = time.process_time()
import torch
torch_is_there = time.process_time()
import accel_bridge.auto
print((time.process_time() - torch_is_there) / (torch_is_there - start))
"""


@pytest.mark.slow
def test_activation_is_quick(python: Python) -> None:
    shares: list[float] = []
    for _ in range(3):
        done = python("-c", IMPORT, ACCEL_BRIDGE_BACKEND="cpu")
        assert done.returncode == 0, done.stderr
        shares.append(float(done.stdout))
        if shares[-1] <= LIMIT:
            return
    pytest.fail(f"{shares} are above {LIMIT}")
