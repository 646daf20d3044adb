"""The former name of :mod:`transformer_engine.pytorch.quantization`."""

from __future__ import annotations

import warnings

from .quantization import *  # noqa: F403

warnings.warn(
    "transformer_engine.pytorch.fp8 is deprecated: use transformer_engine.pytorch.quantization.",
    DeprecationWarning,
    stacklevel=2,
)
