"""What Megatron is given: arguments, paths, data and checkpoints that are wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.hostile.case import Case, Prepare, nothing
from conformance.hostile.fixtures import TRAINED
from conformance.hostile.values import NO_PLACE, NOT_READABLE, Value, strange_contents

#: Flags that count, and the texts that may stand there; some are right for a model.
_COUNTS: Final = (
    *("num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size"),
    *("global-batch-size", "max-position-embeddings", "ffn-hidden-size", "train-iters"),
    *("kv-channels", "num-query-groups", "tensor-model-parallel-size", "log-interval"),
    *("pipeline-model-parallel-size", "context-parallel-size", "expert-model-parallel-size"),
    *("num-experts", "vocab-size", "make-vocab-size-divisible-by", "num-workers", "seed"),
    *("save-interval", "eval-interval", "lr-warmup-iters", "lr-decay-iters", "exit-interval"),
    *("recompute-num-layers", "mtp-num-layers", "window-size", "moe-router-topk"),
    *("distributed-timeout-minutes", "num-layers-per-virtual-pipeline-stage"),
)
_REALS: Final = (
    *("lr", "min-lr", "weight-decay", "clip-grad", "attention-dropout", "hidden-dropout"),
    *("adam-beta1", "adam-eps", "init-method-std", "lr-warmup-fraction", "moe-aux-loss-coeff"),
    *("norm-epsilon", "loss-scale", "rotary-percent"),
)
_WORDS: Final = (
    *("lr-decay-style", "tokenizer-type", "position-embedding-type", "normalization"),
    "ckpt-format",
    *("optimizer", "distributed-backend", "transformer-impl", "dataloader-type", "split", "spec"),
    *("recompute-granularity", "attention-backend", "moe-token-dispatcher-type", "rope-scaling"),
    *("data-path", "tokenizer-model", "no-such-flag", "bf16-", "load", "fp8-format"),
)
#: Flags that contradict one another, or what this machine is.
_TOGETHER: Final = (
    "--swiglu --squared-relu",
    "--fp16 --bf16",
    "--sequence-parallel",
    "--num-query-groups 3 --group-query-attention",
    "--recompute-granularity full",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 0",
    "--num-experts 3 --expert-model-parallel-size 2",
    "--num-experts 4 --moe-router-topk 5",
    "--untie-embeddings-and-output-weights --pipeline-model-parallel-size 3",
    "--train-samples 100",
    "--lr-warmup-iters 5 --lr-warmup-fraction 0.5",
    "--lr-warmup-iters 100 --train-iters 2",
    "--lr 1e6 --train-iters 6",
    "--lr 1e6 --train-iters 6 --optimizer sgd",
    "--lr 1e30 --train-iters 4 --no-check-for-nan-in-loss-and-grad",
    "--init-method-std 1e20",
    "--rampup-batch-size 3 5 100",
    "--rampup-batch-size 2 x y",
    "--use-checkpoint-args",
    "--load no_such --exit-on-missing-checkpoint",
    "--overlap-param-gather",
    "--use-distributed-optimizer --overlap-param-gather",
    "--fp8-format hybrid --fp8-recipe mxfp8",
    "--multi-latent-attention --num-query-groups 2",
    "--position-embedding-type rope --rotary-percent 0.3",
    "--position-embedding-type none --multi-latent-attention",
    "--max-position-embeddings 8",
    "--eval-iters 5 --split 100,0,0",
    "--finetune --load no_such",
    "--ckpt-format torch --use-distributed-optimizer --save made --async-save",
    "--data-path data_text_document --split 1,2",
    "--data-path 0.5 data_text_document 0.5",
    "--data-path data_text_document data_text_document",
    "--data-path data_text_document --mock-data",
    "--train-data-path data_text_document --data-path data_text_document",
    "--num-layers 4 --encoder-num-layers 2 --decoder-last-pipeline-num-layers 3",
    "--spec no.such module",
    "--spec megatron.core no_such",
    "--spec json loads",
    "--config-logger-dir notes.txt",
    "--yaml-cfg notes.txt",
    "--profile --profile-step-start 5 --profile-step-end 2",
    "--exit-duration-in-mins -1",
    "--calculate-per-token-loss --context-parallel-size 0",
    "--no-persist-layer-norm --normalization RMSNorm --apply-layernorm-1p",
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 0",
)  # fmt: skip


def arguments(_: random.Random) -> list[Case]:
    """Arguments of a model that no model has."""
    texts = ("0", "-1", "3", "7", "1.5", "x", "", "1e9", "9" * 30, "nan", "13")
    reals = ("-1", "nan", "inf", "x", "1e400", "2", "1e9", "-0.5", "")
    words = ("x", "", "none", "\x1b[31m", "a,b", "../..", "cosine ", "9" * 200)
    found = [
        _train(f"--{flag}={text:.30}", [f"--{flag}={text}"])
        for flags, values in ((_COUNTS, texts), (_REALS, reals), (_WORDS, words))
        for flag in flags
        for text in values
    ]
    return found + [_train(line, line.split()) for line in _TOGETHER * 3]


def _train(
    name: str,
    words: Sequence[str],
    refused: bool | None = None,
    *,
    kind: str = "arguments",
    outputs: Sequence[str] = (),
    **more: Any,
) -> Case:
    """A training of two iterations.

    :param more: fields of the case.
    """
    model = list(TRAINED)
    if any(word.startswith(("--data-path", "--train-data-path")) for word in words):
        model.remove("--mock-data")
    line = ["accel_bridge", "pretrain", "--", *model, "--train-iters", "2", *words]
    own = {"outputs": ("made", *outputs), "seconds": 150, "memory": None, "trains": True}
    return Case(kind, name, line, refused, **own, **more)


#: Flags of directories that are made.
_WRITTEN: Final = ("save", "tensorboard-dir", "data-cache-path")


def paths(_: random.Random) -> Iterator[Case]:
    """Directories that Megatron cannot make, and files that it cannot read."""
    places = (*NO_PLACE, Value("a file", "notes.txt"), Value("a directory", "photos", None))
    for flag in _WRITTEN:
        more = ["--save-interval", "1"] if flag == "save" else []
        more += ["--data-path", "data_text_document"] if flag == "data-cache-path" else []
        for value in places:
            if value.text:
                # A log or a cache that cannot be written need not end a training.
                refused = value.refused if flag == "save" else None
                yield _path(flag, value, more, refused)
    for value in NOT_READABLE:
        yield _path("data-path", value, [], True)
        yield _path("load", value, ["--exit-on-missing-checkpoint"], True if value.text else None)
        hf = ["--tokenizer-type", "HuggingFaceTokenizer"]
        yield _path("tokenizer-model", value, hf, True)
    for value in strange_contents(""):
        hf = ["--tokenizer-type", "HuggingFaceTokenizer"]
        yield _path("tokenizer-model", value, hf, True)
        gpt2 = ["--tokenizer-type", "GPT2BPETokenizer", "--merge-file", "merges.txt"]
        yield _path("vocab-file", value, gpt2, True)


def _path(flag: str, value: Value, more: Sequence[str], refused: bool | None) -> Case:
    return _train(
        f"--{flag}: {value.name}",
        [f"--{flag}={value.text}", *more],
        refused,
        kind="training",
        outputs=[value.text] if not refused and value.text else [],
        prepare=value.prepare,
        mounts=value.mounts,
    )


#: Numbers that break arithmetic.
_EXTREMES: Final = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def _one(name: str, change: Callable[[Path, random.Random], object], seed: int) -> Prepare:
    def prepare(directory: Path) -> None:
        source = random.Random(seed)
        paths = (directory / "checkpoint").rglob("*")
        files = sorted(path for path in paths if path.is_file())  # in a stable order
        # Not every Megatron writes each of them.
        change(source.choice([path for path in files if name in path.name] or files), source)

    return prepare


def _damage(path: Path, source: random.Random) -> None:
    """One to three changes."""
    made_of = bytearray(path.read_bytes())
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(made_of) or 1)
        kind = source.randrange(5)
        if kind == 0 and made_of:
            made_of[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            value = struct.pack("<Q", source.choice(_EXTREMES))
            made_of[at : at + 8] = value[: len(made_of) - at]
        elif kind == 2:
            del made_of[at : at + source.randint(1, 16)]
        elif kind == 3:
            made_of[at:at] = source.randbytes(source.randint(1, 16))
        else:
            del made_of[at:]
    path.write_bytes(made_of)


#: What is done to a file of a checkpoint.
_CHANGES: Final[dict[str, Callable[[Path, random.Random], object]]] = {
    "damage": _damage,
    "empty": lambda path, _: path.write_bytes(b""),
    "remove": lambda path, _: path.unlink(),
    "halve": lambda path, _: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "to_directory": lambda path, _: (path.unlink(), path.mkdir()),
    "to_loop": lambda path, _: (path.unlink(), path.symlink_to(path.name)),
    "zero": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
}
_FILES: Final = ("latest_checkpointed", "metadata.json", ".metadata", ".distcp", "integ")
#: Arguments with which the checkpoint must not, or need not, be loaded.
_OTHER_RUN: Final = {
    "another size": ("--hidden-size 128", True),
    "more layers": ("--num-layers 8", True),
    "fewer layers": ("--num-layers 2", None),
    "another vocabulary": ("--vocab-size 600", True),
    "other heads": ("--num-attention-heads 8", None),
    "another activation": ("--swiglu", True),
    "another norm": ("--normalization RMSNorm", None),
    "experts": ("--num-experts 4", True),
    "no bias": ("--disable-bias-linear", None),
    "another end": ("--train-iters 7 --lr-decay-iters 7", None),
    "another decay": ("--lr-decay-style linear --lr-decay-iters 99", None),
    "an earlier end": ("--train-iters 1", None),
    "a step that is not there": ("--ckpt-step 77", True),
    "another format": ("--ckpt-format torch --auto-detect-ckpt-format", None),
    "another seed": ("--seed 7", None),
    "another batch": ("--global-batch-size 4", None),
}  # fmt: skip


def checkpoints(source: random.Random) -> Iterator[Case]:
    """Checkpoints whose files are damaged, or that belong to another run."""
    for _ in range(3):
        for name in _FILES:
            for how, change in _CHANGES.items():
                seed = source.randrange(2**32)
                # Without the sums beside it a checkpoint is what it was before there were any.
                refused = None if name == "integ" and how == "remove" else True
                if name == "latest_checkpointed" and how in ("damage", "remove"):
                    refused = None
                yield _loading(f"{name}: {how} {seed}", [], refused, _one(name, change, seed))
    for title, (line, refused) in _OTHER_RUN.items():
        yield _loading(title, line.split(), refused, nothing)


def _loading(name: str, words: Sequence[str], refused: bool | None, prepare: Prepare) -> Case:
    options: list[Any] = ["--train-iters", "4", "--load", "checkpoint", *words]
    return _train(name, options, refused, kind="checkpoints", prepare=prepare, checkpoint=True)
