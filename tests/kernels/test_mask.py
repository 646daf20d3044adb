"""AttentionMask against its definition, element by element."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from accel_bridge.kernels import AttentionMask


def visible(mask: AttentionMask, i: int, j: int, sq: int, sk: int) -> bool:
    """The definition, for one query and one key."""
    if mask.alignment == "bottom_right":
        i += sk - sq
    left, right = mask.window or (None, None)
    return (
        (not mask.causal or j <= i)
        and (left is None or i - left <= j)
        and (right is None or j <= i + right)
    )


@pytest.mark.parametrize(("sq", "sk"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 6)])
@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_band_hides_what_its_definition_says(
    sq: int, sk: int, alignment: str, causal: bool
) -> None:
    for window in itertools.product((None, 0, 1, 2, 100, -1), repeat=2):
        mask = AttentionMask(causal, window, alignment)  # type: ignore[arg-type]
        hidden = mask.hidden(sq, sk, "cpu")
        found = torch.zeros(sq, sk, dtype=torch.bool) if hidden is None else hidden
        for i, j in itertools.product(range(sq), range(sk)):
            assert found[i, j].item() != visible(mask, i, j, sq, sk), (mask, i, j)


def test_plain_causal_is_recognised_only_where_it_is() -> None:
    assert AttentionMask(causal=True).is_plain_causal(4, 4)
    assert AttentionMask(causal=True, window=(3, None)).is_plain_causal(4, 4)
    # Ascend's flags --pre-tockens and --next-tockens.
    wide: Any = {"window": (65536, 65536), "alignment": "top_left"}
    assert AttentionMask(causal=True, **wide).is_plain_causal(9, 9)
    assert AttentionMask(**wide).is_full(9, 9)
    assert not AttentionMask(causal=True, window=(2, None)).is_plain_causal(4, 4)
    assert not AttentionMask(causal=True).is_plain_causal(4, 5)
    masked = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    assert not AttentionMask(causal=True, masked=masked).is_plain_causal(4, 4)
    assert AttentionMask(causal=True).is_full(1, 1)


def test_explicit_mask_is_joined_with_the_band() -> None:
    masked = torch.zeros(2, 1, 1, 3, dtype=torch.bool)
    masked[1, ..., 0] = True
    hidden = AttentionMask(causal=True, masked=masked).hidden(3, 3, "cpu")
    assert hidden is not None
    assert hidden[0, 0].tolist() == torch.ones(3, 3).triu(1).bool().tolist()
    assert hidden[1, 0, :, 0].all()


def test_documents_see_only_themselves() -> None:
    mask = AttentionMask.from_documents(torch.tensor([[0, 0, 1, 1]]), causal=True)
    hidden = mask.hidden(4, 4, "cpu")
    assert hidden is not None
    rows = [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1], [1, 1, 0, 0]]
    assert hidden[0, 0].int().tolist() == rows


def test_a_mask_that_is_not_bool_is_refused() -> None:
    with pytest.raises(TypeError, match="True = hidden"):
        AttentionMask(masked=torch.zeros(2, 2))
