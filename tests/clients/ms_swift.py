"""ms-swift: its commands, each as a user types it."""

from __future__ import annotations

from typing import Final

from clients.steps import Client, Step, same_weights, trains

#: What all of ms-swift's training commands have in common.
_FP32: Final = "--torch_dtype float32 --fp16 false --bf16 false"
_DATA: Final = "--template qwen3 --max_length 512 --load_from_cache_file false"
_SWIFT: Final = (
    f"{_DATA} {_FP32} --micro_batch_size 1 --global_batch_size 4 --train_iters 3 --lr 1e-3 "
    "--logging_steps 1 --dataloader_num_workers 0 --dataset_num_proc 1"
)
_HF: Final = (
    f"{_DATA} {_FP32} --per_device_train_batch_size 1 --gradient_accumulation_steps 4 "
    "--max_steps 1 --logging_steps 1 --dataloader_num_workers 0 --dataset_num_proc 1"
)


def _model(kind: str) -> str:
    return f"--model models/{kind} --model_type {kind}"


def _swift(
    name: str, command: str, kind: str, data: str, more: str = "", before: str = "", like: str = ""
) -> Step:
    """One of ms-swift's training commands below ``accel-bridge run``."""
    output = f"out/{name.replace(' ', '-')}"
    line = (
        f"{before}accel-bridge run -- megatron {command} {_model(kind)} "
        f"--dataset models/{data}.jsonl --output_dir {output} {_SWIFT} {more}"
    )
    return Step(name, line.strip(), trains(output, like), emulated="emulate-ascend" in before)


def _reference(name: str, command: str, kind: str, data: str) -> Step:
    """The same model and data with Transformers' own forward pass, without the bridge."""
    output = f"out/{name.replace(' ', '-')}"
    line = (
        f"swift {command} {_model(kind)} --dataset models/{data}.jsonl --output_dir {output} "
        f"--tuner_type full {_HF}"
    )
    return Step(name, line, trains(output))


_TWO: Final = "NPROC_PER_NODE=2 "
_NPUS: Final = "NPROC_PER_NODE=2 accel-bridge emulate-ascend --install --devices 2 -- "

SWIFT: Final = Client(
    name="ms-swift",
    installs=(
        # msgspec: its preference training imports it, and nothing names it.
        ("ms-swift==4.6.0", "mcore-bridge==1.6.5", "megatron-core==0.19.2", "einops", "msgspec"),
    ),
    shown=("ms-swift", "mcore-bridge", "megatron-core", "transformers", "torch"),
    steps=(
        _reference("reference sft", "sft", "qwen3", "sft"),
        _reference("reference pt", "pt", "qwen3", "pt"),
        _reference("reference moe", "sft", "qwen3_moe", "sft"),
        _swift("sft", "sft", "qwen3", "sft", like="out/reference-sft"),
        _swift("pt", "pt", "qwen3", "pt", like="out/reference-pt"),
        _swift(
            "sft on two ranks",
            "sft",
            "qwen3",
            "sft",
            "--tensor_model_parallel_size 2 --sequence_parallel true",
            _TWO,
            "out/reference-sft",
        ),
        _swift("sft LoRA", "sft", "qwen3", "sft", "--tuner_type lora", like="out/reference-sft"),
        _swift("sft MoE", "sft", "qwen3_moe", "sft", like="out/reference-moe"),
        _swift(
            "sft MoE on two ranks",
            "sft",
            "qwen3_moe",
            "sft",
            "--expert_model_parallel_size 2",
            _TWO,
            "out/reference-moe",
        ),
        _swift("DPO", "rlhf --rlhf_type dpo", "qwen3", "dpo"),
        Step(
            "export to Megatron",
            f"accel-bridge run -- megatron export {_model('qwen3')} --template qwen3 --to_mcore "
            f"true {_FP32} --output_dir out/mcore --exist_ok true --test_convert_precision true",
            lambda work, printed: "written",
        ),
        Step(
            "export to Hugging Face",
            f"accel-bridge run -- megatron export --mcore_model out/mcore --to_hf true {_FP32} "
            "--output_dir out/hf --exist_ok true",
            same_weights("models/qwen3", "out/hf"),
        ),
        _swift(
            "sft on two EMULATED NPUs",
            "sft",
            "qwen3",
            "sft",
            "--tensor_model_parallel_size 2",
            _NPUS,
            "out/reference-sft",
        ),
    ),
)
