"""LayerNorm for large hidden sizes."""

from __future__ import annotations

from .layer_norm import FastLayerNorm

__all__ = ["FastLayerNorm"]
