"""Rotary position embeddings in one kernel."""

from __future__ import annotations

from .fused_rope import fused_apply_rotary_pos_emb, fused_apply_rotary_pos_emb_thd

__all__ = ["fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"]
