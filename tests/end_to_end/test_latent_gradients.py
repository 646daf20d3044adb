"""Latent attention in a tensor-parallel layout trains as one process does."""

from __future__ import annotations

from pathlib import Path

from end_to_end.launcher import train

LATENT = (
    "--multi-latent-attention --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 8 "
    "--v-head-dim 8 --init-method-std 0.2 --ckpt-format torch_dist"
).split()


def test_the_key_that_all_heads_share_gets_the_gradient_of_all(tmp_path: Path) -> None:
    """Without the patch each rank has its own heads' gradient, and soon weights of its own."""
    save = ["--save", str(tmp_path), "--save-interval", "1", "--exit-interval", "1"]
    train(*LATENT, *save, iterations=4).succeeded()
    load = [*LATENT, "--load", str(tmp_path), "--no-load-rng", "--no-load-optim"]
    one = train(*load, iterations=4).succeeded()
    two = [*load, "--tensor-model-parallel-size", "2"]
    spread = train(*two, processes=2, iterations=4).succeeded()
    without = {"ACCEL_BRIDGE_PATCHES": "-latent-gradients"}
    injected = train(*two, processes=2, iterations=4, env=without).succeeded()
    assert max(abs(spread.losses[step] - one.losses[step]) for step in (3, 4)) <= 1e-5
    assert max(abs(injected.losses[step] - one.losses[step]) for step in (3, 4)) > 1e-4
