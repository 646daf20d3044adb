"""The names of :mod:`.conv` that callers look for here."""

from __future__ import annotations

from .conv.causal_conv1d import causal_conv1d, causal_conv1d_update
from .conv.short_conv import ShortConvolution

__all__ = ["ShortConvolution", "causal_conv1d", "causal_conv1d_update"]
