"""Several writes for every token, one decay and one read.

Legend: b batch, t tokens, h heads, k key size, d value size, m writes of a token, n packed
sequences (then b is 1).
"""

from __future__ import annotations

import torch

from ..._packed import check_packed
from ...modules.l2norm import l2norm
from ..gated_delta_rule.chunk import packed_rule


def chunk_gated_delta_product(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    beta: torch.Tensor,
    num_householder: int,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gated delta rule of m times as many tokens; the first of m decays, the last is read.

    :param q: [b, t, h, k].
    :param k: [b, t m, h, k].
    :param v: [b, t m, h, d].
    :param g: [b, t, h], logarithms of decays; None for none.
    :param beta: [b, t m, h].
    :param num_householder: m.
    :param scale: default ``k ** -0.5``.
    :param initial_state: [b or n, h, k, d].
    :param output_final_state: also return the last states, like ``initial_state``, in float32.
    :param use_qk_l2norm_in_kernel: normalise ``q`` and ``k`` first.
    :param cu_seqlens: [n + 1], where packed sequences begin, in tokens.
    :param cu_seqlens_cpu: the same on the host; not needed here.
    :returns: [b, t, h, d], and the states or None.
    """
    writes = num_householder
    b, t, h, _ = q.shape
    assert k.shape == (b, t * writes, h, q.shape[-1])
    assert v.shape[:3] == beta.shape == (b, t * writes, h)
    check_packed(q, cu_seqlens, initial_state)
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    reads = q.new_zeros(b, t, writes, h, q.shape[-1])
    reads[:, :, -1] = q
    decays = beta.new_zeros(b, t, writes, h, dtype=beta.dtype if g is None else g.dtype)
    if g is not None:
        assert g.shape == (b, t, h)
        decays[:, :, 0] = g
    output, state = packed_rule(
        reads.flatten(1, 2),
        k,
        v,
        decays.flatten(1, 2),
        beta,
        scale,
        initial_state,
        output_final_state,
        None if cu_seqlens is None else cu_seqlens * writes,
    )
    return output[:, writes - 1 :: writes].contiguous(), state if output_final_state else None
