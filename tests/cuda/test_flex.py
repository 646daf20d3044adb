"""The tiles that FlexAttention is given for a band window."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from accel_bridge.backends.cuda.kernels import _flex

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("s", "left", "right"),
    [(1024, 200, 0), (1024, 127, 0), (1024, 128, 0), (1152, 130, 70), (1024, 1024, 5), (128, 0, 0)],
)
def test_tiles_of_a_band_are_create_block_masks(s: int, left: int, right: int) -> None:
    ours = _flex._tiles(s, left, right, CPU)
    theirs = create_block_mask(
        lambda b, n, i, j: (j >= i - left) & (j <= i + right), None, None, s, s, device="cpu"
    )
    assert ours.seq_lengths == theirs.seq_lengths
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
    for count, columns in (
        ("kv_num_blocks", "kv_indices"),
        ("full_kv_num_blocks", "full_kv_indices"),
        ("q_num_blocks", "q_indices"),
        ("full_q_num_blocks", "full_q_indices"),
    ):
        for row, tiles in enumerate(getattr(ours, count)[0, 0].tolist()):
            mine, wanted = (getattr(mask, columns)[0, 0, row, :tiles] for mask in (ours, theirs))
            assert mine.tolist() == wanted.tolist()
