"""How a functional recipe of Megatron is made small enough for CPU ranks.

A recipe is a `model_config.yaml` under Megatron's `tests/functional_tests/test_cases`. Its features
stay: every flag that chooses a computation, a layout, a format or a schedule. Only sizes change:

- **widths**: each has a fixed small size (:data:`WIDTHS`), and never grows;
- **layers**: as few as the pipeline allows; as written where the recipe lays them out one by one;
- **processes**: the recipe's own layout, with two data-parallel replicas where eight processes
  have room for two. A larger layout loses half of its largest part until eight are enough;
- **batches**: micro-batches of at most 2, as many as the pipeline wants;
- **length**: six iterations, a checkpoint after three where the recipe saves, one of evaluation;
- **offloading**: tensors of 64 numbers are moved, where the default wants a million;
- **loss scale**: float16 starts with 2^16, as six iterations are too few to find one;
- **inputs**: text of the checkout itself, under the names that the recipe gives. A start from a
  checkpoint that upstream keeps to itself becomes a start from random weights;
- **services**: Weights & Biases and processes that read ahead are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

Arguments = dict[str, object]

#: Iterations of a run, and after how many it saves.
ITERATIONS: Final = 6
SAVED: Final = 3

#: Most processes of a run.
MOST: Final = 8

SEQUENCE: Final = 64

#: Flag -> its largest value. Every width is a multiple of 16 on each of four tensor-parallel ranks
#: where FP8 wants it.
WIDTHS: Final[Mapping[str, int]] = {
    "--hidden-size": 128,
    "--ffn-hidden-size": 256,
    "--num-attention-heads": 8,
    "--num-query-groups": 8,
    "--kv-channels": 16,
    "--moe-ffn-hidden-size": 64,
    "--moe-shared-expert-intermediate-size": 64,
    "--moe-latent-size": 64,
    "--num-experts": 16,
    "--moe-router-topk": 8,
    "--q-lora-rank": 32,
    "--kv-lora-rank": 32,
    "--qk-head-dim": 16,
    "--qk-pos-emb-head-dim": 8,
    "--v-head-dim": 16,
    "--linear-key-head-dim": 16,
    "--linear-value-head-dim": 16,
    "--dsa-indexer-n-heads": 4,
    "--dsa-indexer-head-dim": 32,
    "--dsa-indexer-topk": 32,
    "--mamba-num-heads": 16,
    "--mamba-head-dim": 16,
    "--router-inter-dim": 32,
    "--mup-base-hidden-size": 64,
    "--encoder-num-layers": 2,
    "--decoder-num-layers": 2,
    "--seq-length": SEQUENCE,
    "--max-position-embeddings": SEQUENCE,
    "--encoder-seq-length": SEQUENCE,
    "--decoder-seq-length": 32,
    "--make-vocab-size-divisible-by": 128,
    "--vocab-size": 1024,
    "--micro-batch-size": 2,
    "--eval-iters": 1,
    "--img-h": 56,
    "--img-w": 56,
    "--dataloader-seq-length": 2 * SEQUENCE,
    "--total-seq-length": 2 * SEQUENCE,
    "--inference-max-seq-length": 2 * SEQUENCE,
    "--num-tokens-to-generate": 8,
    "--check-weight-hash-across-dp-replicas-interval": 2,
}

#: Lists of sizes -> the flag whose size they divide.
LISTS: Final[Mapping[str, str]] = {
    "--emb-int-list": "--hidden-size",
    "--mlp-int-list": "--ffn-hidden-size",
    "--mamba-int-list": "--mamba-num-heads",
    "--moe-expert-int-list": "--num-experts",
}

#: Flags that lay out layers one by one.
LAID_OUT: Final = (
    "--pipeline-model-parallel-layout",
    "--moe-layer-freq",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--hybrid-override-pattern",
)

PATTERN: Final = "--hybrid-layer-pattern"

#: How many of the first and last layers stay in bfloat16.
ENDS_IN_BF16: Final = ("--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16")


def number(arguments: Mapping[str, object], flag: str, default: int) -> int:
    """A flag's value as a number."""
    return int(str(arguments.get(flag, default)))


def shrink(arguments: Arguments) -> None:
    """No width above its small size."""
    for flag, most in WIDTHS.items():
        if str(arguments.get(flag, "")).isdigit():
            arguments[flag] = min(number(arguments, flag, most), most)


def processes(arguments: Arguments, most: int = MOST, *, limit: int = MOST) -> int:
    """Processes for the layout, which is made smaller in place if ``limit`` are not enough.

    :param most: processes that a second replica must not exceed.
    """
    while True:
        tensor = number(arguments, "--tensor-model-parallel-size", 1)
        pipeline = number(arguments, "--pipeline-model-parallel-size", 1)
        context = number(arguments, "--context-parallel-size", 1)
        experts = number(arguments, "--expert-model-parallel-size", 1)
        expert_tensor = number(arguments, "--expert-tensor-parallel-size", tensor)
        instances = number(arguments, "--num-distributed-optimizer-instances", 1)
        if "--num-experts" not in arguments:
            experts, expert_tensor = 1, 1
        model = tensor * pipeline * context
        for replicas in (2, 4, 8, 1) if 2 * model <= most else (1, 2, 4, 8):
            world = model * replicas
            whole = world % (pipeline * experts * expert_tensor * instances) == 0
            if world <= limit and whole and replicas % instances == 0:
                return world
        sizes = {
            "--expert-model-parallel-size": experts,
            "--pipeline-model-parallel-size": pipeline,
            "--tensor-model-parallel-size": tensor,
        }
        largest = max(sizes, key=lambda flag: sizes[flag])
        arguments[largest] = sizes[largest] // 2


def scale(
    arguments: Mapping[str, object], *, resumes: bool = False, most: int = MOST
) -> tuple[Arguments, int]:
    """The small recipe and its number of processes."""
    small: Arguments = {
        flag: value for flag, value in arguments.items() if not flag.startswith("--wandb")
    }
    world = processes(small, most)
    for flag, target in LISTS.items():
        if flag in small:
            whole = number(arguments, target, WIDTHS[target])
            sizes = [int(size) for size in str(small[flag]).strip("[]").split()]
            ratio = min(whole, WIDTHS[target]) / whole
            small[flag] = "[" + " ".join(str(max(1, int(size * ratio))) for size in sizes) + "]"
    shrink(small)
    small["--num-workers"] = 0
    if "--fp16" in small:
        small["--initial-loss-scale"] = 65536
    if "--fine-grained-activation-offloading" in small:
        small["--min-offloaded-tensor-size"] = 64
    _experts(small)
    _state_space(small)
    _layers(small)
    _length(small, _batches(small, world), resumes=resumes)
    return small, world


def _experts(small: Arguments) -> None:
    if "--num-experts" in small:
        half = number(small, "--num-experts", 2) // 2
        small["--moe-router-topk"] = min(number(small, "--moe-router-topk", 2), max(1, half))


def _state_space(small: Arguments) -> None:
    """Mamba's sizes have defaults that are as large as a real model's."""
    if PATTERN in small or "--is-hybrid-model" in small or "--hybrid-override-pattern" in small:
        small["--mamba-head-dim"] = WIDTHS["--mamba-head-dim"]
        small["--mamba-state-dim"] = 16
        if small.get("--fp8-recipe") == "mxfp8":
            # Its blocks are of 32, and a rank's projection has a row for each of its heads.
            small["--mamba-num-heads"] = 32 * number(small, "--tensor-model-parallel-size", 1)


def _layers(small: Arguments) -> None:
    stages = number(small, "--pipeline-model-parallel-size", 1)
    if PATTERN in small:
        small[PATTERN] = shorter(str(small[PATTERN]), stages)
        small.pop("--num-layers", None)
        for flag in ENDS_IN_BF16:
            if flag in small:
                small[flag] = min(number(small, flag, 1), 1)
        return
    if "--num-layers" not in small or any(flag in small for flag in LAID_OUT):
        return
    given = number(small, "--num-layers", 2)
    each = number(small, "--num-layers-per-virtual-pipeline-stage", 0)
    virtual = number(small, "--num-virtual-stages-per-pipeline-rank", 0)
    fewest = stages * (2 * each if each else virtual or 1)
    # Gated delta net alternates with attention every few layers.
    fewest = max(fewest, 2, number(small, "--linear-attention-freq", 1) + 1)
    fewest += -fewest % stages
    small["--num-layers"] = min(given, fewest)


def shorter(pattern: str, stages: int) -> str:
    """The start of a hybrid pattern that has every kind of layer, cut into equal stages.

    A pattern with its stages drawn in (``|``) stays as it is; what follows a ``/`` (layers of
    multi-token prediction) stays too.
    """
    main, slash, rest = pattern.partition("/")
    if "|" in main:
        return pattern
    kinds = set(main)
    size = next(n for n in range(1, len(main) + 1) if set(main[:n]) == kinds)
    size += -size % stages
    return main[:size] + slash + rest


def _batches(small: Arguments, world: int) -> int:
    """Set every kind of global batch; its size."""
    micro = number(small, "--micro-batch-size", 1)
    stages = number(small, "--pipeline-model-parallel-size", 1)
    shared = (
        number(small, "--tensor-model-parallel-size", 1)
        * stages
        * number(small, "--context-parallel-size", 1)
    )
    group = number(small, "--microbatch-group-size-per-virtual-pipeline-stage", stages)
    microbatches = max(2, stages, group)
    microbatches += -microbatches % group  # at least the stages, which is the default
    batch = micro * (world // shared) * microbatches
    if "--step-batch-size-schedule" not in small:
        small["--global-batch-size"] = batch
    if "--eval-global-batch-size" in small:
        small["--eval-global-batch-size"] = batch
    if "--step-batch-size-schedule" in small:
        small["--step-batch-size-schedule"] = f"0:{batch} {2 * batch * SEQUENCE}:{2 * batch}"
    if "--rampup-batch-size" in small:
        small["--rampup-batch-size"] = f"[{batch} {batch} {4 * batch}]"
    return batch


def _length(small: Arguments, batch: int, *, resumes: bool) -> None:
    def put(value: int, *flags: str) -> None:
        small.update({flag: value for flag in flags if flag in small})

    if "--train-samples" in small:
        put(ITERATIONS * batch, "--train-samples", "--lr-decay-samples", "--lr-wsd-decay-samples")
        put(min(number(small, "--lr-warmup-samples", 0), batch), "--lr-warmup-samples")
    elif "--train-iters" in small:
        iterations = min(number(small, "--train-iters", ITERATIONS), ITERATIONS)
        put(iterations, "--train-iters", "--lr-decay-iters", "--lr-wsd-decay-iters")
        put(1, "--lr-warmup-iters")
    if number(small, "--exit-interval", ITERATIONS) >= ITERATIONS:
        small.pop("--exit-interval", None)
    interval = SAVED if resumes else min(number(small, "--save-interval", ITERATIONS), ITERATIONS)
    put(interval, "--save-interval", "--save-retain-interval")
    put(1, "--log-interval")


def words(arguments: Mapping[str, object]) -> Sequence[str]:
    """The command line that Megatron's own runner makes of a recipe's arguments."""
    line: list[str] = []
    for flag, value in arguments.items():
        if value is None or value == "":
            continue
        line.append(flag)
        text = str(value).strip()
        if value is True:
            continue
        listed = re.fullmatch(r"\[([^\]]+)\]", text) or re.fullmatch(r"(\d+(?: \d+)+)", text)
        line += listed.group(1).split() if listed else [text]
    return line
