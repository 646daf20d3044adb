"""RMSNorm."""

from __future__ import annotations

from accel_bridge.kernels import RMS_NORM

from ._norm import Norm


class RMSNorm(Norm):
    """``x / sqrt(mean square + eps) * weight``."""

    _CONTRACT = RMS_NORM
