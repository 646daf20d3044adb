"""Kinds of layers, masks and models. Source: apex/transformer/enums.py, as of 25.09."""

from __future__ import annotations

import enum


class LayerType(enum.Enum):
    """Which half of a model a layer belongs to."""

    encoder = 1
    decoder = 2


class AttnType(enum.Enum):
    """What attention looks at."""

    self_attn = 1
    cross_attn = 2


class AttnMaskType(enum.Enum):
    """What attention does not see."""

    padding = 1
    causal = 2


class ModelType(enum.Enum):
    """Whether a model has one half or both."""

    encoder_or_decoder = 1
    encoder_and_decoder = 2
