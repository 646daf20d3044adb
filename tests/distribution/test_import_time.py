"""``import accel_bridge.auto`` costs little beside ``import torch``."""

from __future__ import annotations

import pytest
from plugin_site import Python

#: Seconds of processor time; wall time says little on a machine that does other things.
LIMIT = 0.3

IMPORT = """
import time
import torch
start = time.process_time()
import accel_bridge.auto
print(time.process_time() - start)
"""


@pytest.mark.slow
def test_activation_is_quick(python: Python) -> None:
    seconds: list[float] = []
    for _ in range(3):
        done = python("-c", IMPORT, ACCEL_BRIDGE_BACKEND="cpu")
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
        if seconds[-1] <= LIMIT:
            return
    pytest.fail(f"{seconds} are above {LIMIT}")
