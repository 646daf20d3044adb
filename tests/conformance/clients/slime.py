"""slime: its converters between Hugging Face and Megatron, on the Megatron that its image pins."""

from __future__ import annotations

from typing import Final

from conformance.clients.steps import (
    Check,
    Client,
    Failed,
    Step,
    Work,
    as_bfloat16,
    same_weights,
    tensors,
)

_RUN: Final = "PYTHONPATH=Megatron-LM:slime accel-bridge run --"
_MODEL: Final = (
    "--swiglu --num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 "
    "--group-query-attention --num-query-groups 2 --use-rotary-position-embeddings "
    "--disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 10000 "
    "--vocab-size 320 --kv-channels 16 --qk-layernorm --untie-embeddings-and-output-weights "
    "--make-vocab-size-divisible-by 64"
)


def changed(model: str, back: str, rounded: bool = True) -> Check:
    """An injected fault came back, with all other tensors as they were."""

    def check(work: Work, printed: str) -> str:
        before, after = (tensors(work.directory / directory) for directory in (model, back))
        if rounded:
            before = {name: as_bfloat16(tensor) for name, tensor in before.items()}
        other = [name for name in before if before[name] != after.get(name)]
        words = f"{len(other)} of {len(before)} tensors changed"
        if len(other) != 1 or other[0] not in after:
            raise Failed(words)
        return f"{words}: found"

    return check


def _there_and_back(name: str, model: str, check: Check) -> Step:
    out = f"out/{name.replace(' ', '-')}"
    line = (
        f"rm -rf {out} && {_RUN} torchrun --standalone --nproc-per-node 1 "
        f"slime/tools/convert_hf_to_torch_dist.py {_MODEL} --hf-checkpoint models/{model} "
        f"--save {out} && {_RUN} python slime/tools/convert_torch_dist_to_hf.py "
        f"--input-dir {out}/release --output-dir {out}/hf --origin-hf-dir models/{model}"
    )
    return Step(name, line, check)


SLIME: Final = Client(
    name="slime's converters",
    installs=(
        # Its own requirement, which it asserts: numpy 1.
        ("numpy==1.26.4", "scipy==1.17.1", "pandas==2.2.3", "pyarrow==17.0.0"),
        ("transformers==4.57.6", "torch==2.13.0", "megatron-core==0.19.2", "omegaconf"),
        ("datasets<5", "accelerate", "pylatexenc", "ray"),
    ),
    shown=("transformers", "numpy", "torch"),
    sources=(
        ("https://github.com/THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515"),
        ("https://github.com/NVIDIA/Megatron-LM", "1dcf0dafa884ad52ffb243625717a3471643e087"),
    ),
    steps=(
        _there_and_back(
            "there and back",
            "qwen3",
            same_weights("models/qwen3", "out/there-and-back/hf", rounded=True),
        ),
        _there_and_back(
            "injected fault", "qwen3_injected", changed("models/qwen3", "out/injected-fault/hf")
        ),
    ),
)
