"""Megatron-LM's own examples and tools, typed in its checkout, against Transformers."""

from __future__ import annotations

import json
from typing import Any, Final

from conformance.clients.steps import (
    TOLERANCE,
    Check,
    Client,
    Failed,
    Step,
    Work,
    judged,
    learns,
    same_weights,
    says,
)

#: Sizes of the tiny model, after those of the real one, which the scripts have written in them.
_TINY: Final = (
    "--num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 "
    "--num-query-groups 2 --kv-channels 16 --make-vocab-size-divisible-by 64 --seq-length 64 "
    "--max-position-embeddings 512"
)
_QWEN3: Final = (
    f"{_TINY} --untie-embeddings-and-output-weights --group-query-attention --swiglu "
    "--normalization RMSNorm --norm-epsilon 1e-6 --disable-bias-linear --qk-layernorm "
    "--position-embedding-type rope --rotary-base 10000 --tokenizer-type HuggingFaceTokenizer "
    "--tokenizer-model models/qwen3 --micro-batch-size 1"
)
_PROMPTS: Final = '"What is six times seven?" "hello world, hello"'
_RUN: Final = "PYTHONPATH=Megatron-LM accel-bridge run --"
_POST: Final = (
    f'MLM_SKIP_INSTALL=1 MLM_WORK_DIR=out MLM_EXTRA_ARGS="{_TINY} --untie-embeddings-and-output-'
    'weights" '
)
_SERVING: Final = (
    "--dist-ckpt-strictness log_unexpected --inference-rng-tracker "
    "--inference-dynamic-batching-buffer-size-gb 0.01"
)
_TORCH: Final = "torch==2.13.0"
_SCRIPTS: Final = "Megatron-LM/examples/post_training/modelopt"


def generated(output: str, injected: bool = False) -> Check:
    """Greedy tokens and their log probabilities are Transformers' own.

    :param injected: they must not be.
    """

    def check(work: Work, printed: str) -> str:
        expected = _read(work, "out/reference.json")
        rows = _read(work, output)
        found = [rows[key] for key in sorted((k for k in rows if k.isdigit()), key=int)]
        if len(found) != len(expected):
            raise Failed(f"{len(found)} answers to {len(expected)} prompts")
        same = all(
            one["generated_tokens"] == other["tokens"]
            for one, other in zip(found, expected, strict=True)
        )
        worst = max(
            abs(a - b)
            for one, other in zip(found, expected, strict=True)
            for a, b in zip(
                one["prompt_logprobs"] + one["generated_logprobs"], other["logprobs"], strict=False
            )
        )
        words = f"tokens {'equal' if same else 'differ'}; log probabilities {worst:.1e} apart"
        return judged(words, same and worst <= TOLERANCE, injected)

    return check


def served(work: Work, printed: str) -> str:
    """The server's answers are Transformers' greedy ones."""
    expected = _read(work, "out/reference.json")
    found = _read(work, "out/served.json")
    for one, other in zip(found, expected, strict=True):
        if one["text"] != other["text"]:
            raise Failed(f"{one['text']!r}, not {other['text']!r}")
    return f"{len(found)} answers over HTTP equal"


def _read(work: Work, output: str) -> Any:
    path = work.directory / output
    if not path.is_file():
        raise Failed(f"there is no {output}")
    return json.loads(path.read_text())


def _reference(model: str = "qwen3") -> Step:
    name = "reference" if model == "qwen3" else f"reference {model}"
    line = f"python generation.py models/{model} out/{name.replace(' ', '-')}.json 12 {_PROMPTS}"
    return Step(name, line, lambda work, printed: "written")


def _convert(name: str, model: str, out: str) -> Step:
    line = (
        f"HF_MODEL_CKPT=models/{model} MLM_MODEL_SAVE=out/{out} {_POST}"
        f"{_RUN} bash {_SCRIPTS}/convert.sh Qwen/Qwen3-0.6B"
    )
    return Step(name, line, says("successfully saved checkpoint"))


def _export(name: str, model: str, out: str, check: Check) -> Step:
    line = (
        f"HF_MODEL_CKPT=models/{model} MLM_MODEL_CKPT=out/{out} EXPORT_DIR=out/{out}_hf {_POST}"
        f"{_RUN} bash {_SCRIPTS}/export.sh Qwen/Qwen3-0.6B"
    )
    return Step(name, line, check)


def _offline(name: str, load: str, more: str = "", ranks: int = 1, injected: bool = False) -> Step:
    out = f"out/{name.replace(' ', '-')}.json"
    line = (
        f"{_RUN} torchrun --standalone --nproc-per-node {ranks} "
        f"-m examples.inference.offline_inference {_QWEN3} --load out/{load} {_SERVING} "
        f"--prompts {_PROMPTS} --num-tokens-to-generate 12 --incoming-requests-per-sec -1 "
        f"--return-log-probs --termination-id 319 --output-path {out} {more}"
    )
    return Step(name, line.rstrip(), generated(out, injected))


#: The scripts train in bfloat16; an injected fault is farther away.
_BFLOAT16: Final = 1e-3


#: A directory of rows, as the script's data sets are; four batches.
_CHAT: Final = "mkdir -p chat && cp models/sft.jsonl chat/train.jsonl && "
_SAMPLES: Final = (
    'MLM_DATA_ARGS="--train-samples 16 --lr-decay-samples 16 --lr-warmup-samples 0 '
    '--split 100,0,0 --finetune-hf-dataset chat" MLM_EVAL_ARGS="--eval-iters 1 '
    '--eval-interval 1000 --save-interval 1000 --log-interval 1"'
)


def _modelopt(script: str, load: str, save: str, more: str) -> str:
    extra = _POST.rstrip().removesuffix('"')
    return (
        f"HF_MODEL_CKPT=models/qwen3 MLM_MODEL_CKPT=out/{load} MLM_MODEL_SAVE=out/{save} "
        f'{extra} --rotary-base 10000 --norm-epsilon 1e-6 {more}" '
        f"{_RUN} bash {_SCRIPTS}/{script}.sh Qwen/Qwen3-0.6B"
    )


def _tune(name: str, load: str, injected: bool = False) -> Step:
    more = "--lr 1e-3 --global-batch-size 4 --num-workers 0"
    line = _modelopt("finetune", load, name.replace(" ", "-").replace(":", ""), more)
    reference = "reference of fine-tuning"
    check = learns(reference, start=None, near=_BFLOAT16, injected=injected)
    return Step(name, f"{_CHAT}{_SAMPLES} {line}", check)


MEGATRON: Final = Client(
    name="Megatron-LM's examples and tools",
    installs=(
        f"megatron-core==0.19.2 nvidia-modelopt==0.47.0 {_TORCH} omegaconf pulp psutil",
        # Of Transformers 5's templates the fine-tuning reads no tokens.
        "datasets<5 transformers==4.57.6 hypercorn quart pyzmq msgpack simpy",
    ),
    sources=(("https://github.com/NVIDIA/Megatron-LM", "core_v0.19.0"),),
    shown=("megatron-core", "nvidia-modelopt", "torch"),
    steps=(
        _reference(),
        _convert("post_training: convert", "qwen3", "mcore"),
        _export(
            "post_training: export",
            "qwen3",
            "mcore",
            same_weights("models/qwen3", "out/mcore_hf", rounded=True),
        ),
        _offline("inference", "mcore"),
        # As many padded tokens as on one rank: Megatron's log probabilities count them.
        _offline(
            "inference TP2",
            "mcore",
            "--tensor-model-parallel-size 2 --make-vocab-size-divisible-by 32",
            ranks=2,
        ),
        _offline("inference by coordinator", "mcore", "--use-coordinator"),
        Step(
            "reference of fine-tuning",
            "python packed.py models/qwen3 models/sft.jsonl 64",
            says("REFERENCE"),
        ),
        Step(
            "post_training: quantize",
            _modelopt(
                "quantize",
                "mcore",
                "int8",
                "--calib-size 4 --calib-max-sequence-length 32 --skip-generate "
                "--calib-dataset-path-or-name models/text.jsonl",
            )
            + " INT8_DEFAULT_CFG",
            says("successfully saved checkpoint"),
        ),
        _tune("post_training: finetune", "mcore"),
        _tune("post_training: finetune quantized", "int8"),
        _convert("post_training: convert with an error", "qwen3_injected", "injected"),
        _offline("injected fault", "injected", injected=True),
        _tune("injected fault finetuned", "injected", injected=True),
        Step(
            "inference server",
            f"{_RUN} torchrun --standalone --nproc-per-node 1 "
            f"-m examples.inference.launch_inference_server {_QWEN3} --load out/mcore {_SERVING} "
            "--termination-id 319 --frontend-replicas 1 --port 5017 & server=$!; "
            f"python ask.py http://127.0.0.1:5017 out/served.json 12 {_PROMPTS}; "
            "kill $server; wait",
            served,
        ),
    ),
)
