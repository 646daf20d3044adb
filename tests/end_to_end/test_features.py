"""What real scripts ask for besides layouts: each runs on real Megatron."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge.apps.testing import MOE
from end_to_end.launcher import COUNTING, train, worst_difference

#: Scripts' choices, several to a run; none overlaps in what it exercises.
FEATURES = {
    "llama": "--position-embedding-type rope --swiglu --normalization RMSNorm "
    "--disable-bias-linear --group-query-attention --num-query-groups 2 "
    "--untie-embeddings-and-output-weights --qk-layernorm",
    "gpt2": "--position-embedding-type learned_absolute --normalization LayerNorm "
    "--apply-layernorm-1p --apply-query-key-layer-scaling --no-masked-softmax-fusion --fp16 "
    "--attention-softmax-in-fp32",
    "window": "--window-size 15,0 --rotary-interleaved --position-embedding-type rope "
    "--use-cpu-initialization --bf16",
    "latent-attention": "--multi-latent-attention --q-lora-rank 16 --kv-lora-rank 16 "
    "--qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 16 --normalization RMSNorm",
    "multi-token-prediction": "--mtp-num-layers 1 --position-embedding-type rope",
}


#: Megatron's default spec with every choice, and the local one where it has code of its own.
RUNS = [(name, "transformer_engine") for name in FEATURES]
RUNS += [(name, "local") for name in ("gpt2", "latent-attention")]


@pytest.mark.parametrize(("name", "impl"), RUNS)
def test_trains(name: str, impl: str) -> None:
    options = [*FEATURES[name].split(), "--transformer-impl", impl]
    if (name, impl) == ("gpt2", "local"):
        # Transformer Engine refuses another dtype than its weights'.
        options.append("--fp32-residual-connection")
    if "--fp16" in options:
        # Megatron starts at 2^32 and halves the scale at every overflow.
        options += ["--initial-loss-scale", "1024"]
    run = train(*options, script=COUNTING, iterations=6).succeeded()
    assert len(run.losses) == 6
    assert run.losses[6] < run.losses[1] - 0.05
    assert run.left_behind <= 0


def test_experts_on_two_ranks_in_bf16(moe_checkpoint: Path) -> None:
    """In fp32 the parity suite compares them with one rank's."""
    load = ["--load", str(moe_checkpoint), "--finetune", "--bf16", *MOE]
    run = train(*load, "--expert-model-parallel-size", "2", processes=2, iterations=5).succeeded()
    assert len(run.losses) == 5
    assert run.losses[5] < run.losses[1]


def test_recomputation_repeats_the_dropout(dense_checkpoint: Path) -> None:
    """Dropout drawn again in the second forward pass must be the first one's."""
    options = "--attention-dropout 0.1 --hidden-dropout 0.1 --tensor-model-parallel-size 2"
    load = ["--load", str(dense_checkpoint), "--finetune", *options.split()]
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    plain = train(*load, processes=2, iterations=5).succeeded()
    recomputed = train(*load, *full.split(), processes=2, iterations=5).succeeded()
    assert worst_difference(plain, recomputed) <= 1e-5
    assert "CPU RNG state changed" not in plain.output


def test_fp16_finds_its_loss_scale(dense_checkpoint: Path) -> None:
    load = ["--load", str(dense_checkpoint), "--finetune", "--fp16"]
    run = train(*load, "--initial-loss-scale", str(2**24), iterations=12).succeeded()
    assert "number of skipped iterations:   1" in run.output
    assert 12 in run.losses


def test_evaluation_and_tensorboard(tmp_path: Path) -> None:
    board = ["--tensorboard-dir", str(tmp_path), "--log-memory-to-tensorboard"]
    # As is Megatron's default: the test model loads its data without processes.
    board += ["--num-workers", "2"]
    evaluation = ["--eval-interval", "2", "--eval-iters", "1"]
    run = train(*board, *evaluation, "--log-throughput", iterations=4).succeeded()
    assert run.output.count("validation loss at iteration") >= 2
    assert any(path.stat().st_size > 1000 for path in tmp_path.glob("events.out.tfevents.*"))


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
