"""The loss over a vocabulary that may be split over ranks."""

from __future__ import annotations

import warnings

import torch

from accel_bridge.kernels import CROSS_ENTROPY, group_size
from accel_bridge.kernels.active import kernel

__all__ = ["parallel_cross_entropy"]


def parallel_cross_entropy(
    inp: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: torch.distributed.ProcessGroup | None = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
    *,
    _input: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy of each token, or their mean, in float32.

    Where the backend has a kernel of its own, it may write the gradient over ``inp``, as the real
    function does.

    :param inp: [.., .., v / p], any float dtype: this rank's slice of the logits, ranks in order.
    :param target: ids in [0, v), one for each row of ``inp``, or ``ignore_idx``.
    :param label_smoothing: probability spread evenly over all v classes, as in torch.
    :param reduce_loss: give the mean over the tokens that are not ignored.
    :param dist_process_group: the p ranks that share the vocabulary; None when it is whole.
    :param ignore_idx: a target whose loss and gradient are 0.
    :param is_cg_capturable: nothing here waits for the device either way.
    :param _input: deprecated name of ``inp``.
    :returns: ``inp.shape[:-1]``, or no dimensions with ``reduce_loss``; float32.
    """
    if _input is not None:
        warnings.warn(
            "The '_input' parameter is deprecated. Please use 'inp' instead.",
            FutureWarning,
            stacklevel=2,
        )
        inp = _input
    target = target.reshape(inp.shape[:-1]).to(torch.int64)
    ignored = target == ignore_idx
    vocabulary = inp.shape[-1] * group_size(dist_process_group)
    loss = kernel(CROSS_ENTROPY)(
        inp,
        target.masked_fill(ignored, 0),
        group=dist_process_group,
        # The contract spreads the probability over the wrong classes alone.
        label_smoothing=label_smoothing * (vocabulary - 1) / vocabulary,
    ).masked_fill(ignored, 0.0)
    if not reduce_loss:
        return loss
    return loss.sum() / ignored.logical_not().sum().clamp(min=1)
