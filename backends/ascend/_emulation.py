"""Whether this process runs on an emulated Ascend machine, and the emulator's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from accel_bridge.plugin import Variable

#: Directory that serves as the machine's root; ``accel-bridge emulate-ascend`` sets it.
ROOT_VARIABLE: Final = "ASCEND_EMULATOR_ROOT"
#: Marks all output that comes from an emulated device.
LABEL: Final = "EMULATED"
TORCH_NPU: Final = Variable(
    "ACCEL_BRIDGE_TORCH_NPU",
    "",
    "a directory that holds torch_npu (`pip install --target`)",
    "tells emulate-ascend where torch_npu is; if unset, it looks in its cache",
    str,
)


def emulated_root(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The emulated machine's root directory; None on a real machine."""
    root = environ.get(ROOT_VARIABLE)
    return Path(root) if root else None
