"""``LayerNorm``.

Source of the interface: transformer_engine/pytorch/module/layernorm.py of Transformer Engine 2.13.
"""

from __future__ import annotations

from ._norm import Norm

__all__ = ["LayerNorm"]


class LayerNorm(Norm):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimensions.

    :param normalized_shape: sizes of the dimensions that are normalised over.
    :param zero_centered_gamma: the factor is one plus the weight.
    :param sm_margin: read by callers; the kernels here have none.
    :param sequence_parallel: set as an attribute of the parameters.
    """

    normalization = "LayerNorm"

    def reset_layer_norm_parameters(self) -> None:
        """Deprecated name of :meth:`reset_parameters`."""
        self._reset_by_old_name("reset_layer_norm_parameters")
