"""Recipes that generate text: upstream keeps their checkpoints, so a small one is trained first.

The checkpoint has a small model of the recipe's family and the recipe's tokenizer; every flag of
the recipe that chooses an engine, a layout or a cache stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import recipe_rules

#: Architecture and length of the checkpoint; Megatron reads the former back from it.
COMMON: Final = """
--num-layers 4 --hidden-size 128 --num-attention-heads 8 --group-query-attention
--num-query-groups 8 --kv-channels 16 --ffn-hidden-size 256 --seq-length 64
--max-position-embeddings 256 --normalization RMSNorm --swiglu --disable-bias-linear
--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
--make-vocab-size-divisible-by 128 --micro-batch-size 2 --global-batch-size 4 --train-iters 2
--lr 1e-3 --eval-iters 0 --eval-interval 1000 --save-interval 2 --bf16 --mock-data --num-workers 0
--transformer-impl transformer_engine --ckpt-format torch_dist --log-interval 1
""".split()

#: What the families have beside; the word is in the recipe's name.
FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    "hybrid": (
        "pretrain_hybrid.py",
        "--hybrid-layer-pattern M-M*M-M* --position-embedding-type none --mamba-head-dim 16 "
        "--mamba-state-dim 16 --spec megatron.core.models.hybrid.hybrid_layer_specs "
        "hybrid_stack_spec",
    ),
    "moe": (
        "pretrain_gpt.py",
        "--position-embedding-type rope --num-experts 16 --moe-router-topk 2 "
        "--moe-ffn-hidden-size 64 --moe-grouped-gemm --moe-token-dispatcher-type alltoall",
    ),
    "gpt": ("pretrain_gpt.py", "--position-embedding-type rope"),
}

#: Ids of the tokenizer: specials, then bytes.
SPECIALS: Final = 256
TOKENIZER: Final = (
    "--tokenizer-type TikTokenizer --tiktoken-pattern v2 --vocab-size 512 "
    f"--tiktoken-num-special-tokens {SPECIALS} --tokenizer-model"
).split()

#: Flags whose values must fit the small model, beside recipe_rules.WIDTHS.
SMALL: Final[Mapping[str, object]] = {
    "--inference-dynamic-batching-buffer-size-gb": 0.25,
    "--inference-max-seq-length": 256,
    "--inference-dynamic-batching-max-tokens": 512,
    "--inference-dynamic-batching-max-requests": 16,
    "--inference-max-requests": 4,
    "--inference-repeat-n": 1,
    "--prompt-file-num-truncate": 4,
    "--num-tokens-to-generate": 8,
    "--incoming-requests-per-step": 4,
}
_OWN: Final = ("--load", "--tokenizer-model", "--tokenizer-type", "--tiktoken-pattern")


def make_tokenizer(folder: Path) -> Path:
    """A tiktoken vocabulary of single bytes, as Megatron reads it."""
    import base64

    path = folder / "bytes.vocab.json"
    rows = [
        {"rank": n, "token_bytes": base64.b64encode(bytes([n])).decode(), "token_str": ascii(n)}
        for n in range(256)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def make_prompts(folder: Path) -> None:
    """The file of prompts that recipes name."""
    path = folder / "text/sharegpt-vicuna/filtered/processed.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": f"Write {n} words about the sea."}) for n in range(1, 9)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def checkpoint(family: str, tokenizer: Path, folder: Path) -> tuple[str, list[str]]:
    """Script and words that train the checkpoint."""
    script, words = FAMILIES[family]
    common = [*COMMON]
    if family == "hybrid":
        at = common.index("--num-layers")
        del common[at : at + 2]
    line = [*common, *words.split(), *TOKENIZER, str(tokenizer)]
    return script, [*line, "--save", str(folder)]


def scale(arguments: Mapping[str, object], tokenizer: Path, folder: Path) -> tuple[list[str], int]:
    """Words of the small recipe after its checkpoint, and processes."""
    small: recipe_rules.Arguments = dict(arguments)
    for flag in _OWN:
        small.pop(flag, None)
    for flag, value in SMALL.items():
        if flag in small:
            small[flag] = value
    small["--num-experts"] = small.get("--num-experts", 16)
    world = recipe_rules.processes(small, most=1)
    if "--num-experts" not in arguments:
        del small["--num-experts"]
    if "--use-checkpoint-args" not in small:
        small["--use-checkpoint-args"] = True
    line = [*recipe_rules.words(small), *TOKENIZER, str(tokenizer), "--load", str(folder)]
    return line, world
