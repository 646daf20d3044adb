"""Latent attention in a tensor-parallel layout trains as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end.launcher import train

LATENT = (
    "--multi-latent-attention --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 8 "
    "--v-head-dim 8 --init-method-std 0.2 --ckpt-format torch_dist"
).split()


@pytest.mark.parametrize(
    ("patches", "agrees"),
    [("", True), pytest.param("-latent-gradients", False, marks=pytest.mark.conformance)],
)
def test_the_key_that_all_heads_share_gets_the_gradient_of_all(
    tmp_path: Path, patches: str, agrees: bool
) -> None:
    """Without the patch each rank has its own heads' gradient, and soon weights of its own."""
    save = ["--save", str(tmp_path), "--save-interval", "1", "--exit-interval", "1"]
    train(*LATENT, *save, iterations=4).succeeded()
    load = [*LATENT, "--load", str(tmp_path), "--no-load-rng", "--no-load-optim"]
    one = train(*load, iterations=4).succeeded()
    two = [*load, "--tensor-model-parallel-size", "2"]
    environ = {"ACCEL_BRIDGE_PATCHES": patches} if patches else {}
    spread = train(*two, processes=2, iterations=4, env=environ).succeeded()
    distance = max(abs(spread.losses[step] - one.losses[step]) for step in (3, 4))
    assert distance <= 1e-5 if agrees else distance > 1e-4
