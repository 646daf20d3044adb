"""Convolutions."""

from __future__ import annotations

from .causal_conv1d import causal_conv1d

__all__ = ["causal_conv1d"]
