"""Training speed beside upstream Megatron and Transformer Engine, in one lease of one machine.

    python tests/benchmarks/bench_training.py [--models A,B] [--ways local,bridge,te] [--out FOLDER]

Every row is a process of its own (torchrun) that trains on mock data with Megatron's own training
loop. Time is Megatron's "elapsed time per iteration", the median after the warm-up; TFLOP/s are
Megatron's own count; memory is the largest ``torch.cuda.max_memory_allocated`` of any rank.

- ``local``: upstream's local spec. Nothing of accel_bridge but the patch without which a
  pip-installed Megatron does not start (it runs ``make``).
- ``te``: Transformer Engine's spec, likewise, with ``--attention-backend fused``: cuDNN's fused
  attention or an error, never a silent fallback. ``--te FOLDER`` is where it is installed.
- ``bridge``: Megatron's default arguments with accel_bridge, without Transformer Engine.
- ``beside``: the same with the real Transformer Engine installed.
- ``before``: ``bridge`` with another accel_bridge, installed in ``--before FOLDER``.

The rows of a model run one after the other, so that their ratios are those of one machine state.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ITERATIONS = 26
WARMUP = 8
#: Patch without which no pip-installed Megatron starts.
ONLY_MAKE = "dataset-helpers"

_COMMON = (
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 50256 --seed 42 --lr 1e-4 "
    "--min-lr 1e-5 --lr-decay-style cosine --clip-grad 1.0 --log-interval 1 --log-throughput "
    "--eval-iters 0 --eval-interval 100000 --distributed-backend nccl "
    "--no-create-attention-mask-in-dataloader --num-workers 2 "
    f"--train-iters {ITERATIONS} --lr-decay-iters {ITERATIONS} "
)
_GPT = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --micro-batch-size 4 "
_LLAMA = (
    "--num-layers 4 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 64 "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 1 "
    "--global-batch-size 8 "
)
_NO_DROPOUT = "--attention-dropout 0 --hidden-dropout 0 "
_MOE = (
    "--num-layers 4 --hidden-size 2048 --ffn-hidden-size 5632 --moe-ffn-hidden-size 5632 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--micro-batch-size 2 --global-batch-size 16 --num-experts 8 --moe-router-topk 2 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
)

_LLAMA_8B = (
    "--num-layers 3 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 "
    "--max-position-embeddings 8192 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 1 "
    "--global-batch-size 4 --untie-embeddings-and-output-weights --vocab-size 128255 "
)
_QWEN3 = (
    "--num-layers 8 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 16 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --qk-layernorm "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 2 "
    "--global-batch-size 8 --untie-embeddings-and-output-weights --vocab-size 151935 "
)
_MLA_MOE = (
    "--num-layers 4 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 "
    "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
    "--v-head-dim 128 --seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--micro-batch-size 2 --global-batch-size 8 --num-experts 16 --moe-router-topk 4 "
    "--moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 1408 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
    "--untie-embeddings-and-output-weights "
)

#: Model -> Megatron's arguments.
MODELS: dict[str, str] = {
    "gpt-124m-512-fp16": _GPT + "--seq-length 512 --max-position-embeddings 512 --fp16 "
    "--global-batch-size 16 --initial-loss-scale 65536",
    "gpt-124m-4096-bf16": _GPT + "--seq-length 4096 --max-position-embeddings 4096 --bf16 "
    "--global-batch-size 16",
    "l4-h4096": _LLAMA + _NO_DROPOUT,
    "l4-h4096-dropout": _LLAMA,
    "l4-h4096-window-1024": _LLAMA + _NO_DROPOUT + "--window-size (1023,0)",
    "l4-h4096-8-documents": _LLAMA + _NO_DROPOUT + "--dataloader-inter-document-masking",
    "moe-8x2": _MOE + _NO_DROPOUT,
    "llama-8b": _LLAMA_8B + _NO_DROPOUT,
    "qwen3": _QWEN3 + _NO_DROPOUT,
    "mla-moe": _MLA_MOE + _NO_DROPOUT,
    "tp2": _LLAMA + _NO_DROPOUT + "--tensor-model-parallel-size 2",
    "tp2-sp": _LLAMA + _NO_DROPOUT + "--tensor-model-parallel-size 2 --sequence-parallel",
    "pp2": _LLAMA + _NO_DROPOUT + "--pipeline-model-parallel-size 2",
    "dp2": _LLAMA + _NO_DROPOUT + "--use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather",
    "cp2": _LLAMA + _NO_DROPOUT + "--context-parallel-size 2",
}
#: Models that need two GPUs.
TWO_GPUS = ("tp2", "tp2-sp", "pp2", "dp2", "cp2")
#: Tokens of each document of mock data, where a model packs documents.
DOCUMENT = {"l4-h4096-8-documents": 512}
#: What each way adds to the arguments.
WAYS = {
    "local": "--transformer-impl local --no-gradient-accumulation-fusion --no-persist-layer-norm "
    "--no-masked-softmax-fusion --no-rope-fusion",
    "bridge": "",
    "beside": "",
    "before": "",
    "te": "--no-gradient-accumulation-fusion --no-masked-softmax-fusion --attention-backend fused",
}


@dataclass
class Row:
    """One run.

    :param milliseconds: median per iteration; None when the run failed.
    :param spread: the middle half of the iterations, as a share of the median.
    :param gigabytes: peak memory of the fullest rank, 10^9 bytes.
    :param losses: every iteration's loss.
    :param error: the last line of a run that failed.
    """

    model: str
    way: str
    milliseconds: float | None = None
    spread: float = 0.0
    tokens_per_second: float = 0.0
    tflops: float = 0.0
    gigabytes: float = 0.0
    losses: tuple[float, ...] = ()
    error: str = ""


def train() -> None:
    """One process of a run; arguments of Megatron in ``sys.argv``."""
    import accel_bridge.auto  # noqa: F401 - before Megatron

    if document := int(os.environ.get("BENCH_DOCUMENT", "0")):
        _set_document_length(document)
    if steps := os.environ.get("BENCH_PROFILE"):
        _profile(steps)
    import torch

    from accel_bridge.pretrain import pretrain_gpt

    try:
        pretrain_gpt.main()
    finally:
        print(f"bench-peak {torch.cuda.max_memory_allocated()}", flush=True)


def _set_document_length(document: int) -> None:
    """Mock data of documents of this many tokens."""
    import numpy
    from megatron.core.datasets import gpt_dataset

    made = gpt_dataset.MockGPTLowLevelDataset.__init__

    def initialise(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        made(self, *args, **kwargs)
        self.sequence_lengths = numpy.full_like(self.sequence_lengths, document)

    gpt_dataset.MockGPTLowLevelDataset.__init__ = initialise


def _profile(path: str) -> None:
    """Profile two steps after the warm-up and write a table of kernels to ``path``."""
    import torch
    from megatron.training import training

    real = training.train_step
    state = {"step": 0, "profiler": None}

    def train_step(*args, **kwargs):  # type: ignore[no-untyped-def]
        state["step"] += 1
        if state["step"] == WARMUP + 2:
            state["profiler"] = torch.profiler.profile()
            state["profiler"].start()
        result = real(*args, **kwargs)
        if state["step"] == WARMUP + 3:
            torch.cuda.synchronize()
            state["profiler"].stop()
            averages = state["profiler"].key_averages()
            with open(path, "w") as file:
                for order in ("self_cuda_time_total", "self_cpu_time_total"):
                    file.write(
                        averages.table(sort_by=order, row_limit=45, max_name_column_width=90)
                    )
        return result

    training.train_step = train_step


def measure(model: str, way: str, options: argparse.Namespace) -> Row:
    """Run one model one way and read its log."""
    processes = 2 if model in TWO_GPUS else 1
    arguments = f"{_COMMON} {MODELS[model]} {WAYS[way]} {options.extra}"
    if model == "moe-8x2":
        # Upstream's local spec has no grouped experts; Transformer Engine a fused permutation.
        local = way == "local"
        arguments = arguments.replace("--moe-grouped-gemm", "") if local else arguments
        arguments += " --moe-permute-fusion" if way == "te" else ""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(processes), __file__, "--train"),
        *arguments.split(),
    ]
    environment = dict(os.environ, PYTHONWARNINGS="ignore", CUDA_DEVICE_MAX_CONNECTIONS="1")
    environment["BENCH_DOCUMENT"] = str(DOCUMENT.get(model, 0))
    if way in ("local", "te"):
        environment["ACCEL_BRIDGE_PATCHES"] = ONLY_MAKE
        environment["ACCEL_BRIDGE_LIBRARIES"] = "none"
    if way in ("te", "beside") and options.te:
        environment |= _transformer_engine(Path(options.te))
    if way == "before":
        environment["PYTHONPATH"] = f"{options.before}:{os.environ.get('PYTHONPATH', '')}"
    if options.profile:
        environment["BENCH_PROFILE"] = str(Path(options.out) / f"profile-{model}-{way}.txt")
    log = Path(options.out) / f"{model}-{way}.log"
    with log.open("w") as file:
        try:
            subprocess.run(
                command,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=options.limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            file.write(f"\nError: no end within {options.limit} s\n")
    return read(log.read_text(errors="replace"), model, way, arguments)


def _transformer_engine(folder: Path) -> dict[str, str]:
    """Variables under which a Transformer Engine in ``folder`` finds its libraries.

    Without the preloaded cuDNN sub-libraries it falls back to unfused attention.
    """
    import nvidia

    root = Path(next(iter(nvidia.__path__)))
    libraries = [root / part / "lib" for part in ("nccl", "cudnn", "cu13")]
    names = ("graph", "engines_precompiled", "engines_runtime_compiled", "heuristic", "ops")
    preload = [root / "cudnn/lib" / f"libcudnn_{name}.so.9" for name in names]
    preload.append(root / "cudnn/lib/libcudnn.so.9")
    paths = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
        "LD_LIBRARY_PATH": ":".join([*map(str, libraries), paths]),
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
    }


def read(log: str, model: str, way: str, arguments: str) -> Row:
    """The row that a log tells."""
    times = [float(t) for t in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", log)]
    speeds = [float(t) for t in re.findall(r"throughput per GPU \(TFLOP/s/GPU\): ([\d.]+)", log)]
    losses = tuple(float(t) for t in re.findall(r"lm loss: ([\d.E+-]+)", log))
    peaks = [int(peak) for peak in re.findall(r"bench-peak (\d+)", log)]
    if len(times) < ITERATIONS:
        lines = [line for line in log.splitlines() if "Error" in line] or log.splitlines()[-1:]
        return Row(model, way, error=lines[-1][:200] if lines else "no output", losses=losses)
    times = times[WARMUP:]
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4)
    value = dict(re.findall(r"--(seq-length|global-batch-size) (\d+)", arguments))
    tokens = int(value["seq-length"]) * int(value["global-batch-size"])
    return Row(
        model,
        way,
        median,
        (high - low) / median,
        tokens / median * 1e3,
        statistics.median(speeds[WARMUP:]) if speeds else 0.0,
        max(peaks, default=0) / 1e9,
        losses,
    )


def print_table(rows: list[Row]) -> None:
    """The rows as Markdown, with each bridge row's ratios to the others of its model."""
    print("| model | way | ms | spread | tokens/s | TFLOP/s per GPU | GB | bridge is faster by |")
    print("|---|---|---|---|---|---|---|---|")
    ours = {row.model: row for row in rows if row.way == "bridge" and row.milliseconds}
    for row in rows:
        if row.milliseconds is None:
            print(f"| {row.model} | {row.way} | - | | | | | {row.error} |")
            continue
        ratio = ""
        if (bridge := ours.get(row.model)) is not None and bridge is not row:
            assert bridge.milliseconds is not None
            ratio = f"{row.milliseconds / bridge.milliseconds:.2f}x"
            if row.gigabytes:
                ratio += f", memory {bridge.gigabytes / row.gigabytes:.2f}x"
        print(
            f"| {row.model} | {row.way} | {row.milliseconds:.1f} | {row.spread:.1%} | "
            f"{row.tokens_per_second:,.0f} | {row.tflops:.0f} | {row.gigabytes:.1f} | {ratio} |"
        )


def main() -> None:
    """Measure the models and ways that were asked for, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(m for m in MODELS if m not in TWO_GPUS))
    parser.add_argument("--ways", default="local,bridge,te")
    parser.add_argument("--before", help="folder in which another accel_bridge is installed")
    parser.add_argument("--te", help="folder in which Transformer Engine is installed")
    parser.add_argument("--out", default=".", help="folder for logs and rows.json")
    parser.add_argument("--limit", type=int, default=150, help="seconds for one run")
    parser.add_argument("--profile", action="store_true", help="write tables of kernels too")
    parser.add_argument("--extra", default="", help="more arguments for Megatron")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    rows = []
    for model in options.models.split(","):
        for way in options.ways.split(","):
            row = measure(model, way, options)
            print(
                f"{model} {way}: {row.milliseconds or row.error} ms, {row.gigabytes:.1f} GB, "
                f"loss {row.losses[-1] if row.losses else None}",
                file=sys.stderr,
                flush=True,
            )
            rows.append(row)
            Path(options.out, "rows.json").write_text(json.dumps([asdict(row) for row in rows]))
    print_table(rows)


if __name__ == "__main__":
    if "--train" in sys.argv:
        sys.argv.remove("--train")
        train()
    else:
        main()
