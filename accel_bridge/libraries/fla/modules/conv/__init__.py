"""Convolutions."""

from __future__ import annotations

from .causal_conv1d import causal_conv1d
from .short_conv import ShortConvolution

__all__ = ["ShortConvolution", "causal_conv1d"]
