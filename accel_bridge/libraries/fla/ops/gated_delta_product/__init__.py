"""The gated delta product."""

from __future__ import annotations

from .chunk import chunk_gated_delta_product

__all__ = ["chunk_gated_delta_product"]
