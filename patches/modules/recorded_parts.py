"""Which parts of parameters a rank's distributed optimizer owns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def own_parts(
    wrapped: Any,
) -> Iterable[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]]:
    """(parameter, weight, gradient), the part that this rank's distributed optimizer owns.

    After the reduce-scatter the rest of a bucket holds unreduced gradients, and with overlapped
    gathers stale weights. Where a parameter begins is the buffer's to say: 0.12's buckets do not,
    and 0.16's leave out the padding.
    """
    starts = {
        parameter: start
        for buffer in (*wrapped.buffers, *wrapped.expert_parallel_buffers)
        for parameter, (start, *_) in buffer.param_index_map.items()
    }
    for group in (*wrapped.bucket_groups, *wrapped.expert_parallel_bucket_groups):
        ranks = group.intra_distributed_optimizer_instance_size
        rank = group.intra_distributed_optimizer_instance_rank
        for bucket in group.buckets:
            size = bucket.grad_data.numel() // ranks
            for parameter in bucket.params_list:
                first = starts[parameter] - bucket.offset
                last = first + parameter.numel()
                start, end = max(first, rank * size), min(last, (rank + 1) * size)
                if start < end:
                    weight = parameter.data.reshape(-1)[start - first : end - first]
                    yield parameter, weight, bucket.grad_data[start:end]
