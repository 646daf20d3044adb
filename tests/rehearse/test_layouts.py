"""Collectives and parameters of a rehearsal are those of a real run with gloo, in every layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from accel_bridge.apps.rehearse.report import collectives

from .counting import count, volumes

pytestmark = [pytest.mark.megatron, pytest.mark.slow]

MODEL = (
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 127 --num-layers 2 --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
    "--global-batch-size 4 --bf16 --swiglu --normalization RMSNorm --disable-bias-linear "
    "--position-embedding-type rope --lr 1e-3 --train-iters 2 --eval-iters 0 --num-workers 0 "
    "--untie-embeddings-and-output-weights --no-create-attention-mask-in-dataloader "
    "--no-check-for-nan-in-loss-and-grad --log-interval 100 "
)
LAYOUTS = {
    "tp2-sp-pp2": (
        4,
        "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2",
    ),
    # What predicts further tokens, and the loss, in stages of their own.
    "vpp": (
        2,
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|tm|L "
        "--num-layers 3 --mtp-num-layers 1",
    ),
    "dp2-overlap": (
        2,
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ),
    # Experts are shared among the ranks that share a sequence.
    "cp2-ep2": (
        2,
        "--context-parallel-size 2 --expert-model-parallel-size 2 --num-experts 4 "
        "--moe-router-topk 4 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
        "--moe-ffn-hidden-size 32",
    ),
    "fsdp": (
        2,
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
        "--no-gradient-accumulation-fusion --use-distributed-optimizer --ckpt-format fsdp_dtensor "
        "--init-model-with-meta-device",
    ),
    "fp8-weights": (
        2,
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
        "--fp8-format hybrid --fp8-param-gather",
    ),
    "fsdp2": (2, "--use-torch-fsdp2 --no-gradient-accumulation-fusion --ckpt-format torch_dist"),
}

#: Layouts whose checkpoint's files are compared too.
SAVED = ("dp2-overlap", "fsdp2")


@pytest.mark.timeout(500)
def _layouts(every: Iterable[str], *nightly: str) -> list[Any]:
    """All of them; those that are named run every night only."""
    return [pytest.param(one, marks=[pytest.mark.conformance] * (one in nightly)) for one in every]


@pytest.mark.parametrize("layout", _layouts(LAYOUTS, "vpp", "fsdp", "fp8-weights"))
def test_collectives_are_those_of_a_real_run(layout: str, warm: str, tmp_path: Path) -> None:
    ranks, flags = LAYOUTS[layout]
    command = [warm, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--standalone"]
    command += ["-m", "accel_bridge.pretrain.pretrain_gpt", *MODEL.split(), *flags.split()]
    saved, planned = tmp_path / "saved", tmp_path / "planned"
    save = ["--save-interval", "2", "--save"] if layout in SAVED else []
    environ = {
        **os.environ,
        "ACCEL_BRIDGE_BACKEND": "cpu",
        "COUNT_DIRECTORY": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parent),
    }
    real = subprocess.run(
        [*command, *save, *([str(saved)] if save else [])],
        env={**environ, "_ACCEL_BRIDGE_BEFORE": "counting:attach"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert real.returncode == 0, real.stderr[-20_000:]

    kept = tmp_path / "kept"
    kept.mkdir()
    rehearsed = subprocess.run(
        [
            *(sys.executable, "-m", "accel_bridge", "rehearse", "--ranks", "all"),
            *("--device", "host", "--keep", str(kept), "--", *command),
            *([*save, str(planned)] if save else []),
        ],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert rehearsed.returncode == 0, rehearsed.stdout[-2000:] + rehearsed.stderr[-3000:]

    for rank in range(ranks):
        truth = json.loads((tmp_path / f"real.{rank}.json").read_text())
        found = json.loads((kept / f"rank.{rank}.json").read_text())
        assert found["parameters"] == truth["parameters"]
        counted, expected = count(found), count(truth)
        if layout == "fp8-weights":  # NCCL gathers both kinds of weights as one, gloo does not
            counted, expected = volumes(counted), volumes(expected)
        assert counted == expected
        assert expected
        sizes = {Path(name).relative_to(planned): size for name, size in found["files"]}
        files = {name: size for name, size in sizes.items() if name.suffix == ".distcp"}
        real_files = {path.relative_to(saved) for path in saved.rglob(f"__{rank}_*.distcp")}
        assert set(files) == real_files
        for name, size in files.items():
            assert size == pytest.approx((saved / name).stat().st_size, rel=0.03)
    assert not planned.exists()


_MOE = (
    "--num-experts 4 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--moe-ffn-hidden-size 32 --num-layers 4"
)
#: Ranks, which of them, data-parallel replicas, microbatches of a step, those that are run, flags.
FEW = {
    "overlap": (2, "0", 2, 9, 4, LAYOUTS["dp2-overlap"][1]),
    "pp4": (4, "0,3", 1, 11, 7, "--pipeline-model-parallel-size 4 --num-layers 4"),
    "vpp": (
        *(2, "0,1", 1, 16, 12),
        "--pipeline-model-parallel-size 2 --num-layers 8 --num-layers-per-virtual-pipeline-stage 2 "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ),
    "ep2-pp2": (
        *(4, "0,3", 2, 9, 5),
        f"{_MOE} --pipeline-model-parallel-size 2 --expert-model-parallel-size 2 "
        "--recompute-granularity selective --recompute-modules layernorm moe_act",
    ),
    "tp2-ep2": (
        *(4, "0", 2, 7, 4),
        f"{_MOE} --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 "
        "--expert-tensor-parallel-size 1 --moe-aux-loss-coeff 0.01",
    ),
    "cp2": (2, "0", 1, 9, 4, "--context-parallel-size 2 --use-distributed-optimizer"),
}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("layout", _layouts(FEW, "overlap", "pp4", "ep2-pp2", "cp2"))
def test_few_microbatches_tell_of_all(layout: str, warm: str, tmp_path: Path) -> None:
    ranks, which, replicas, all_of_them, run, flags = FEW[layout]
    found, kept = [], []
    for how in ("few", "all"):
        command = [sys.executable, "-m", "accel_bridge", "rehearse", "--microbatches", how]
        command += ["--ranks", which, "--json", str(tmp_path / "made.json")]
        command += ["--keep", str(tmp_path / how), "--", warm, "-m", "torch.distributed.run"]
        command += [f"--nproc-per-node={ranks}", "-m", "accel_bridge.pretrain.pretrain_gpt"]
        command += [*MODEL.split(), *flags.split()]
        command += ["--global-batch-size", str(all_of_them * replicas)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        found.append(json.loads((tmp_path / "made.json").read_text()))
        path = tmp_path / how / f"rank.{which.split(',')[0]}.json"
        kept.append(json.loads(path.read_text()))
    few, everything = found
    note = f"{run} of {all_of_them} microbatches ran; the others repeat them and are counted"
    assert few["notes"] == [note]
    assert everything["notes"] == []
    for mine, theirs in zip(few["ranks"], everything["ranks"], strict=True):
        for name in set(mine) - {"seconds", "assumed"}:
            assert mine[name] == theirs[name], (mine["rank"], name)
    assert few["step"]["seconds"] == pytest.approx(everything["step"]["seconds"], rel=1e-9)
    # One too few, or too many, is another number of calls.
    for wrong in (-1, 1):
        calls = [[*call, n + wrong * (n > 1)] for *call, n in kept[0]["calls"]]
        faulty = kept[0] | {"calls": calls}
        assert collectives(faulty) != collectives(kept[1]) == collectives(kept[0])


def _rehearsed(warm: str, made: Path, device: str, *flags: str, **environ: str) -> dict[str, Any]:
    """The only rank of a small training, as the report's JSON has it."""
    command = [sys.executable, "-m", "accel_bridge", "rehearse", "--device", device]
    command += ["--json", str(made), "--", warm, "-m", "torch.distributed.run"]
    command += ["--nproc-per-node=1", "-m", "accel_bridge.pretrain.pretrain_gpt"]
    done = subprocess.run(
        [*command, *MODEL.split(), *flags],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (rank,) = json.loads(made.read_text())["ranks"]
    return dict(rank)


@pytest.mark.parametrize("implementation", ["local", "transformer_engine"])
def test_activations_on_the_host_are_not_the_devices(
    implementation: str, warm: str, tmp_path: Path
) -> None:
    """MindSpeed's --swap-attention, which is Megatron's offloading."""
    needs = []
    for flags in ("", "--swap-attention --min-offloaded-tensor-size 1024"):
        words = [*flags.split(), "--transformer-impl", implementation]
        made = tmp_path / "made.json"
        rank = _rehearsed(warm, made, "910b-64g", *words, NVTE_CPU_OFFLOAD_V1="1")
        needs.append(rank["memory"]["activations"])
    # Of a layer: the inputs of attention's two products, query, key, value and result, in bfloat16.
    moved = 2 * 6 * 64 * 64 * 2
    assert moved / 2 < needs[0] - needs[1] < 2 * moved, needs


def test_the_arithmetic_of_experts_is_that_of_every_precision(warm: str, tmp_path: Path) -> None:
    """In bfloat16 torch's operators count it, in FP8 one kernel of Triton's for all experts."""
    operations = []
    for flags in ("", "--fp8-format hybrid --fp8-recipe tensorwise"):
        words = [*flags.split(), "--num-experts", "4", "--moe-grouped-gemm"]
        work = _rehearsed(warm, tmp_path / "made.json", "h200", *words)["work"]
        operations.append(sum(work[kind][1] for kind in work if "matmul" in kind))
    assert operations[1] == pytest.approx(operations[0], rel=0.02)


def test_what_a_cluster_has_and_a_laptop_has_not(tmp_path: Path) -> None:
    """Conversations, a checkpoint with its arguments, NCCL's memory, DeepEP, overlapped GEMMs."""
    command = [sys.executable, "-m", "accel_bridge", "rehearse", "--", "torchrun"]
    command += ["--nproc-per-node=2", "-m", "accel_bridge.pretrain.pretrain_gpt", *MODEL.split()]
    command += [*LAYOUTS["fsdp"][1].split(), "--use-nccl-ub", "--use-checkpoint-args"]
    command += ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--tp-comm-overlap"]
    command += ["--load", str(tmp_path / "absent"), "--pretrained-checkpoint", "absent"]
    command += ["--tokenizer-type", "SFTTokenizer", "--tokenizer-model", "absent.model", "--sft"]
    command += ["--num-experts", "2", "--moe-token-dispatcher-type", "flex"]
    command += ["--save", str(tmp_path / "saved"), "--save-interval", "2"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-3000:]
    assert "a vocabulary of 127, for absent.model is not on this machine" in made.stdout
    assert "no checkpoint is loaded" in made.stdout
    assert "--tp-comm-overlap wants" in made.stdout
    assert "of fsdp_dtensor's shards is not known" in made.stdout
    assert "argument moe_token_dispatcher_type: flex -> alltoall" in made.stdout


def test_a_layout_that_cannot_divide_is_the_programs_own_error() -> None:
    command = [sys.executable, "-m", "accel_bridge", "rehearse", "--", "torchrun"]
    command += ["--nproc-per-node=4", "-m", "accel_bridge.pretrain.pretrain_gpt", *MODEL.split()]
    made = subprocess.run(
        [*command, "--tensor-model-parallel-size", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 1
    assert "rank 0 does not get through" in made.stderr
    assert "world size" in made.stderr.lower() or "divisible" in made.stderr
