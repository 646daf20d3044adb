"""What the end of a recorded run has to know of its last step."""

from __future__ import annotations

from dataclasses import dataclass

from accel_bridge.errors import BridgeError


@dataclass
class Failure:
    """Why no recording could be written at the last step.

    :param waits: somebody asks for it at the end; a checkpoint is saved before that.
    """

    waits: bool = False
    error: BridgeError | None = None
