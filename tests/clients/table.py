"""What is run: the clients, their commands, and what each must have computed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: How far the first loss, and logits, may be from Hugging Face's own, in float32.
TOLERANCE: Final = 1e-4


class Failed(Exception):
    """A step did not do what it should; the message says what."""


@dataclass(frozen=True)
class Work:
    """Where the commands run, and the environment that their programs come from."""

    folder: Path
    environment: Path


Check = Callable[[Work, str], str]


@dataclass(frozen=True)
class Step:
    """One command as a user types it.

    :param check: takes the work and what was printed; gives the result in words, or raises.
    :param emulated: it runs on EMULATED NPUs.
    """

    name: str
    command: str
    check: Check
    emulated: bool = False


@dataclass(frozen=True)
class Client:
    """A framework.

    :param installs: words for pip, one tuple for each call.
    :param shown: distributions whose versions are shown.
    """

    name: str
    installs: tuple[tuple[str, ...], ...]
    shown: tuple[str, ...]
    steps: tuple[Step, ...]


def losses(work: Work, output: str) -> list[float]:
    """What the newest run below ``output`` logged."""
    logs = sorted(
        (work.folder / output).glob("**/logging.jsonl"), key=lambda one: one.stat().st_mtime
    )
    if not logs:
        raise Failed(f"{output} has no logging.jsonl")
    rows = [json.loads(line) for line in logs[-1].read_text().splitlines()]
    values = [float(row["loss"]) for row in rows if "loss" in row]
    if not values:
        raise Failed(f"{logs[-1]} has no loss")
    return values


def trains(output: str, reference: str = "") -> Check:
    """The loss falls; its first value is that of the run in ``reference``."""

    def check(work: Work, printed: str) -> str:
        found = losses(work, output)
        words = f"loss {found[0]:.5f} -> {found[-1]:.5f}"
        if len(found) > 1 and not found[-1] < found[0]:
            raise Failed(f"{words} does not fall")
        if not reference:
            return words
        distance = abs(found[0] - losses(work, reference)[0])
        words += f"; {distance:.1e} from Hugging Face's"
        if distance > TOLERANCE:
            raise Failed(words)
        return words

    return check


def same_weights(model: str, back: str) -> Check:
    """Every tensor of ``model`` is in ``back``, bit for bit."""

    def check(work: Work, printed: str) -> str:
        before, after = (tensors(work.folder / folder) for folder in (model, back))
        changed = [name for name in before if before[name] != after.get(name)]
        if changed:
            raise Failed(f"{len(changed)} of {len(before)} tensors changed, {changed[0]} first")
        return f"all {len(before)} tensors equal"

    return check


def tensors(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Dtype, shape and bytes of each tensor in a folder's safetensors files."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                first, last = (8 + size + place for place in entry["data_offsets"])
                found[name] = (entry["dtype"], entry["shape"], data[first:last])
    if not found:
        raise Failed(f"{folder} has no tensors")
    return found


def converts(work: Work, printed: str) -> str:
    """auto_bridge.py's report: near logits, a planted error that shows, equal tensors."""
    report = json.loads(re.findall(r"^REPORT (.*)$", printed, re.MULTILINE)[-1])
    words = (
        f"logits {report['logits']:.1e} from Hugging Face's (a planted error: "
        f"{report['planted']:.1e}); {report['tensors'] - len(report['changed'])} of "
        f"{report['tensors']} tensors equal after the round trip"
    )
    if report["logits"] > TOLERANCE or report["planted"] < TOLERANCE or report["changed"]:
        raise Failed(words)
    return words


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

BRIDGE: Final = Client(
    name="Megatron-Bridge",
    installs=(
        # Of its dependencies some are built for CUDA alone (fast-hadamard-transform, flashinfer).
        ("--no-deps", "megatron-bridge==0.6.2"),
        (
            *("transformers==5.12.1", "peft==0.21.2", "datasets==5.2.0", "hydra-core==1.3.8"),
            *("nvidia-modelopt==0.47.0", "nvidia-resiliency-ext==0.4.1", "qwen-vl-utils"),
            *("mistral-common==1.13.1", "wandb", "megatron-core[training]==0.19.2", "einops"),
        ),
    ),
    shown=("megatron-bridge", "megatron-core", "transformers", "nvidia-modelopt", "torch"),
    steps=(
        *(
            Step(
                f"{kind} there and back",
                f"accel-bridge run auto_bridge.py models/{kind} back/{kind}",
                converts,
            )
            for kind in ("llama", "qwen3", "qwen3_moe", "deepseek_v3")
        ),
        Step(
            "qwen3_moe on two ranks",
            "accel-bridge run -- torchrun --standalone --nproc-per-node 2 auto_bridge.py "
            "models/qwen3_moe back/qwen3_moe_2",
            converts,
        ),
    ),
)

CLIENTS: Final = (SWIFT, BRIDGE)
