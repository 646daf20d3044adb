"""A multi-layer perceptron as one function."""

from __future__ import annotations

from .mlp import MLP

__all__ = ["MLP"]
