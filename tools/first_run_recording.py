"""Record the run that `accel-bridge first-run` compares every machine with: 20 steps on a CPU.

    python tools/first_run_recording.py

To be run again when the model in accel_bridge/apps/first_run/_machine.py changes, or when the
newest supported Megatron is another one (a recording is of one Megatron).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from accel_bridge import recording
from accel_bridge.apps.first_run._machine import PARITY_MODEL
from accel_bridge.apps.first_run._steps import SHIPPED


def main() -> int:
    """Train on the CPU, and keep what a comparison needs."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "cpu.rec")
        command = [sys.executable, "-m", "accel_bridge", "parity", "record", "--out", str(out)]
        command += ["--nproc-per-node", "1", "--", *PARITY_MODEL.split()]
        environ = {**os.environ, "ACCEL_BRIDGE_BACKEND": "cpu"}
        status = subprocess.run(command, env=environ, check=False).returncode
        if status:
            return status
        # The environment and the arguments name this machine's folders, and nobody compares them.
        found = replace(recording.read(out), environment={}, arguments={}, patches=())
        size = recording.write(found, SHIPPED)
    print(f"wrote {SHIPPED}: {len(found.steps)} steps, {size >> 10} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
