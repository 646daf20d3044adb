"""The import of torch: a broken one is named, and not what happened to import it first."""

from __future__ import annotations

import sys
import traceback

from accel_bridge._errors import BridgeError
from accel_bridge._extras import require
from accel_bridge._log import is_debug


class BrokenTorch(BridgeError):
    """PyTorch is installed and cannot be imported."""


def import_torch() -> None:
    """Import torch; where it is broken, say that it is torch.

    :raises MissingPackage: it is not installed.
    :raises BrokenTorch: its import fails, or gives something else than PyTorch.
    """
    require("torch")
    try:
        import torch

        found = getattr(torch, "__file__", None)
        if not (hasattr(torch, "__version__") and hasattr(torch, "Tensor")):
            raise ImportError(f"{found or list(torch.__path__)} is not PyTorch")
    except (Exception, SystemExit) as error:
        line = " ".join(traceback.format_exception_only(error)[-1].split())
        frame = traceback.extract_tb(error.__traceback__)[-1]
        debug = "".join(traceback.format_exception(error)).splitlines() * is_debug()
        raise BrokenTorch(
            "PyTorch is installed and cannot be imported.",
            evidence=[line, f"raised in {frame.filename}:{frame.lineno}", *debug],
            next=f"{sys.executable} -c 'import torch' shows it alone; mend or reinstall torch "
            "(`accel-bridge env` shows versions and libraries)",
        ) from error
