"""Recipes that generate text: upstream keeps their checkpoints, so a small one is trained first.

The checkpoint has a small model of the recipe's architecture and a tokenizer of single bytes; every
flag of the recipe that chooses an engine, a layout or a cache stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import recipe_rules

#: Architecture and length of the checkpoint; Megatron reads the former back from it.
COMMON: Final = """
--num-layers 4 --hidden-size 128 --num-attention-heads 8 --group-query-attention
--num-query-groups 8 --kv-channels 16 --ffn-hidden-size 256 --seq-length 64
--max-position-embeddings 1024 --normalization RMSNorm --swiglu --disable-bias-linear
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

#: Largest values that fit the small model, beside recipe_rules.WIDTHS.
SMALL: Final[Mapping[str, float]] = {
    "--inference-dynamic-batching-buffer-size-gb": 0.25,
    "--inference-max-seq-length": 1024,
    "--inference-dynamic-batching-max-tokens": 1024,
    "--inference-dynamic-batching-max-requests": 16,
    "--inference-max-requests": 4,
    "--inference-repeat-n": 1,
    "--prompt-file-num-truncate": 4,
    "--num-tokens-to-generate": 8,
    "--incoming-requests-per-step": 4,
}
_REQUESTS: Final = "--inference-dynamic-batching-max-requests"
#: Ranks that generate: one answers, and the others step, too.
RANKS: Final = 4
_BUFFER: Final = "--inference-dynamic-batching-buffer-size-gb"
#: What a recipe says of its model, which its checkpoint must have, too.
_ARCHITECTURE: Final = re.compile(
    "--(num-layers|hidden-size|ffn-hidden-size|num-attention-heads|num-query-groups|kv-channels|"
    "group-query-attention|num-experts|hybrid-layer-pattern|mamba-(num|head|state).*|"
    "moe-(ffn|shared|latent|router|layer|grouped).*|position-embedding-type|rotary.*|yarn.*|"
    "window.*|softmax-type|normalization|swiglu|squared-relu|quick-geglu|glu.*|activation-func.*|"
    "add-qkv-bias|untie.*|disable-bias-linear)"
)
_OWN: Final = ("--load", "--tokenizer-model", "--tokenizer-type", "--tiktoken-pattern")


def make_tokenizer(directory: Path) -> Path:
    """A tiktoken vocabulary of single bytes, as Megatron reads it."""
    import base64

    path = directory / "bytes.vocab.json"
    rows = [
        {"rank": n, "token_bytes": base64.b64encode(bytes([n])).decode(), "token_str": ascii(n)}
        for n in range(256)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def make_prompts(directory: Path) -> None:
    """The file of prompts that recipes name."""
    path = directory / "text/sharegpt-vicuna/filtered/processed.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": f"Write {n} words about the sea."}) for n in range(1, 9)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _model(arguments: Mapping[str, object], stages: int) -> recipe_rules.Arguments:
    """The recipe's own architecture, small enough."""
    model = {flag: value for flag, value in arguments.items() if _ARCHITECTURE.fullmatch(flag)}
    recipe_rules.shrink(model)
    if recipe_rules.number(arguments, "--expert-model-parallel-size", 1) > 1:
        # A recipe may leave its experts to the checkpoint.
        model.setdefault("--num-experts", 16)
        model.setdefault("--moe-ffn-hidden-size", 64)
    if "--num-layers" in model:
        model["--num-layers"] = max(4, stages)
    if recipe_rules.PATTERN in model:
        pattern = str(model[recipe_rules.PATTERN])
        model[recipe_rules.PATTERN] = recipe_rules.shorter(pattern, stages)
        model.pop("--num-layers", None)
    return model


def checkpoint(
    family: str, arguments: Mapping[str, object], tokenizer: Path, directory: Path
) -> tuple[str, list[str]]:
    """Script and words that train the checkpoint that a recipe's arguments ask for."""
    script, words = FAMILIES[family]
    stages = recipe_rules.number(arguments, "--pipeline-model-parallel-size", 1)
    model = _model(arguments, stages)
    common = [*COMMON]
    optimized = arguments.get("--transformer-impl") == "inference_optimized"  # takes no gated ones
    if optimized or model.keys() & {"--quick-geglu", "--squared-relu"}:
        common.remove("--swiglu")
    if family == "hybrid":
        at = common.index("--num-layers")
        del common[at : at + 2]
        model.pop("--num-layers", None)
        if "--num-experts" in model and "E" not in str(model.get(recipe_rules.PATTERN, "")):
            model[recipe_rules.PATTERN] = "MEM*EMEM*E"
    if optimized and "--num-experts" in model:
        model["--squared-relu"] = True  # Nemotron's experts, for which it has kernels
    # Of a flag that is given twice, the last counts.
    line = [*common, *words.split(), *recipe_rules.words(model), *TOKENIZER, str(tokenizer)]
    return script, [*line, "--save", str(directory)]


def scale(
    arguments: Mapping[str, object], tokenizer: Path, directory: Path
) -> tuple[list[str], int]:
    """Words of the small recipe after its checkpoint, and processes."""
    small: recipe_rules.Arguments = dict(arguments)
    for flag in _OWN:
        small.pop(flag, None)
    for flag, value in SMALL.items():
        if flag in small:
            small[flag] = min(type(value)(str(small[flag])), value)
    # Left out, they are what fits a GPU: 40 GB, and more requests than tiny states leave room for.
    small.setdefault(_BUFFER, SMALL[_BUFFER])
    if recipe_rules.PATTERN in small:
        small.setdefault(_REQUESTS, SMALL[_REQUESTS])
    small["--num-experts"] = small.get("--num-experts", 16)
    world = recipe_rules.processes(small, most=1, limit=RANKS)
    if "--num-experts" not in arguments:
        del small["--num-experts"]
    stages = recipe_rules.number(small, "--pipeline-model-parallel-size", 1)
    model = _model(arguments, stages)
    if "--hybrid-layer-pattern" in model:
        small.pop("--num-layers", None)
    # Lengths come from the checkpoint.
    for flag in ("--seq-length", "--max-position-embeddings", "--padded-vocab-size"):
        small.pop(flag, None)
    small |= model | {"--use-checkpoint-args": True}
    line = [*recipe_rules.words(small), *TOKENIZER, str(tokenizer), "--load", str(directory)]
    return line, world
