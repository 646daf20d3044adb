"""Dot-product attention on the active backend's attention kernel."""

from __future__ import annotations

from .dot_product_attention import DotProductAttention, _attention_backends

__all__ = ["DotProductAttention", "_attention_backends"]
