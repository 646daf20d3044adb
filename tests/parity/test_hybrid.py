"""Hybrid models: the same weights in every layout, experts by their global number."""

from __future__ import annotations

import pytest

from accel_bridge.apps.testing import MOE, Agree, Record

#: Mamba, a gated delta net, attention and experts.
RUN = (
    *"--train-iters 2 --lr-decay-iters 2 --make-vocab-size-divisible-by 256".split(),
    *"--hybrid-layer-pattern MG*E --normalization RMSNorm --position-embedding-type rope".split(),
    *"--mamba-num-heads 4 --mamba-head-dim 32 --mamba-state-dim 16 --mamba-num-groups 2".split(),
    *"--linear-key-head-dim 16 --linear-value-head-dim 16 --linear-num-key-heads 4".split(),
    *("--linear-num-value-heads", "4", "--moe-grouped-gemm", *MOE),
)


@pytest.mark.parametrize(
    "layout",
    [
        "--tensor-model-parallel-size 2 --sequence-parallel --make-vocab-size-divisible-by 128",
        "--expert-model-parallel-size 2",
        "--pipeline-model-parallel-size 2 --hybrid-layer-pattern MG|*E",
    ],
)
def test_layouts_agree(layout: str, record: Record, agree: Agree) -> None:
    one = record(*RUN, model="hybrid")
    agree(one, record(*RUN, *layout.split(), processes=2, model="hybrid"))


def test_heads_of_two_ranks_share_the_norm_of_a_delta_layer(record: Record, agree: Agree) -> None:
    """Without sequence parallelism nothing of Megatron's sums its gradient."""
    run = [*RUN, "--hybrid-layer-pattern", "MG*-", "--swiglu"]
    split = "--tensor-model-parallel-size 2 --make-vocab-size-divisible-by 128".split()
    one = record(*run, model="hybrid")
    agree(one, record(*run, *split, processes=2, model="hybrid"))
