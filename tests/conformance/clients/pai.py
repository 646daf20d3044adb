"""Pai-Megatron-Patch: its converters and its fine-tuning of a Qwen3, on the Megatron it pins."""

from __future__ import annotations

from typing import Final

from conformance.clients.steps import Check, Client, Step, learns, same_weights, says

_MODEL: Final = (
    "--num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 "
    "--group-query-attention --num-query-groups 2 --kv-channels 16 --qk-layernorm "
    "--normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear "
    "--position-embedding-type rope --rotary-base 10000 --max-position-embeddings 512 "
    "--untie-embeddings-and-output-weights --padded-vocab-size 320 --no-load-optim --no-load-rng"
)
_REFERENCE: Final = "reference"
_PATCH: Final = "Pai-Megatron-Patch"
_TORCHRUN: Final = "accel-bridge run -- torchrun --standalone --nproc-per-node"


def _convert(name: str, check: Check, words: str, before: str = "") -> Step:
    tools = f"{_PATCH}/toolkits/distributed_checkpoints_convertor/impl"
    line = (
        f"{before}PYTHONPATH={_PATCH}:Megatron-LM:{tools} {_TORCHRUN} 1 {tools}/convert.py "
        f"{_MODEL} --seq-length 1 --micro-batch-size 1 --global-batch-size 1 --train-iters 1 "
        f"--lr 1e-3 --model-type GPT --tokenizer-type HuggingFaceTokenizer {words}"
    )
    return Step(name, line, check)


def _hf_to_mcore(name: str, model: str) -> Step:
    out = f"out/{model}"
    return _convert(
        name,
        says("Conversion finished"),
        f"--tokenizer-model {out} --load-dir {out} --save-dir {out}-mcore",
        # As the converter's scripts do.
        f"rm -rf {out} && python slow.py models/{model} {out} && mkdir -p {out}-mcore && "
        f"cp {out}/*.json {out}/merges.txt {out}-mcore && ",
    )


def _tune(name: str, model: str, ranks: int = 1, more: str = "", injected: bool = False) -> Step:
    line = (
        f"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=true PYTHONPATH={_PATCH}:Megatron-LM {_TORCHRUN} "
        f"{ranks} {_PATCH}/examples/qwen3/pretrain_qwen.py {_MODEL} --load out/{model}-mcore "
        "--no-save-optim --seq-length 128 --max-padding-length 128 --lr 1e-3 --min-lr 1e-3 "
        "--lr-decay-style constant --attention-dropout 0 --hidden-dropout 0 --train-iters 3 "
        "--micro-batch-size 1 --global-batch-size 4 --log-interval 1 --eval-interval 1000 "
        "--eval-iters 0 --patch-tokenizer-type Qwen3Tokenizer --dataset JSON-SFT "
        f"--train-data-path out/{model}/rows.json --valid-data-path out/{model}/rows.json "
        "--dataloader-type cyclic --train-mode finetune --eod-mask-loss --num-workers 0 "
        "--calculate-per-token-loss --transformer-impl transformer_engine "
        f"--use-distributed-optimizer{more}"
    )
    return Step(name, line, learns(_REFERENCE, start=None, injected=injected))


PAI: Final = Client(
    name="Pai-Megatron-Patch",
    installs=(
        # Its tokenizers take no Transformers 5.
        "transformers==4.57.6 torch==2.13.0 megatron-core==0.19.2 datasets<5",
        "accelerate einops tensorboard six",
    ),
    shown=("transformers", "torch"),
    sources=(
        (
            "https://github.com/alibaba/Pai-Megatron-Patch",
            "a098ca5acbdeaf7172ce0393fa309b39a77506db",
        ),
        ("https://github.com/NVIDIA/Megatron-LM", "6a6cd478839d90cf09a837adf8c79cbc844bc920"),
    ),
    steps=(
        Step(
            _REFERENCE,
            "python reference.py models/qwen3 models/sft.jsonl turn",
            says("REFERENCE"),
        ),
        _hf_to_mcore("convert", "qwen3"),
        _convert(
            "convert back",
            same_weights("models/qwen3", "out/convert-back"),
            "--tokenizer-model out/qwen3 --load-dir out/qwen3-mcore --save-dir out/convert-back "
            "--hf-dir out/qwen3 --mcore2hf",
            "mkdir -p out/convert-back && ",
        ),
        _tune("finetune", "qwen3"),
        _tune("finetune TP2", "qwen3", 2, " --tensor-model-parallel-size 2 --sequence-parallel"),
        _tune("finetune DP2", "qwen3", 2),
        _hf_to_mcore("convert with an error", "qwen3_injected"),
        _tune("injected fault", "qwen3_injected", injected=True),
    ),
)
