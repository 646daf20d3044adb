"""ms-swift: its commands, each as a user types it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from conformance.clients.steps import NPU, Check, Client, Step, compared, learns, same_weights, says

#: What all of its commands have in common.
_FP32: Final = "--torch_dtype float32 --fp16 false --bf16 false"
_DATA: Final = "--max_length 512 --load_from_cache_file false"
_LOADING: Final = "--dataloader_num_workers 0 --dataset_num_proc 1 --add_version false"
_MEGATRON: Final = (
    f"{_DATA} {_FP32} --micro_batch_size 1 --global_batch_size 4 --train_iters 3 --lr 1e-3 "
    f"--logging_steps 1 {_LOADING}"
)
#: The same training, with Transformers' own model, optimizer and schedule.
_TRANSFORMERS: Final = (
    f"{_DATA} {_FP32} --per_device_train_batch_size 1 --gradient_accumulation_steps 4 "
    f"--max_steps 3 --learning_rate 1e-3 --logging_steps 1 {_LOADING}"
)
_TWO: Final = "NPROC_PER_NODE=2 "
_NPUS: Final = "NPROC_PER_NODE=2 accel-bridge emulate-ascend --install --devices 2 -- "
_DPO: Final = "rlhf --rlhf_type dpo"


#: Transformers' training that others are compared with -> its command and its model.
_REFERENCES: Final = {
    "sft": ("sft", "qwen3"),
    "pt": ("pt", "qwen3"),
    "MoE": ("sft", "qwen3_moe"),
    "DPO": (_DPO, "qwen3"),
}
_FAMILIES: Final = {
    "Llama": "llama",
    "Qwen2.5": "qwen2",
    "Qwen2-MoE": "qwen2_moe",
    "Qwen3-Next": "qwen3_next",
    "GLM-4": "glm4",
    "GLM-4.5": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "DeepSeek-V3": "deepseek_v3",
}
_TP2: Final = "--tensor_model_parallel_size 2"
_PP2: Final = "--pipeline_model_parallel_size 2"
_SP: Final = f"{_TP2} --sequence_parallel true"
_EP2: Final = "--expert_model_parallel_size 2"
_PRECISE: Final = "--to_mcore true --test_convert_precision true"
_SAVED: Final = "Successfully saved Megatron model weights"


def _model(kind: str) -> str:
    template = "qwen3" if kind.startswith("qwen3") else "chatml"
    return (
        f"--model models/{kind} --model_type {kind.removesuffix('_injected')} --template {template}"
    )


def _output(name: str) -> str:
    return f"out/{name.replace(' ', '-')}"


def _words(like: str, kind: str, name: str) -> str:
    """The command, the model and the data of a training."""
    command = _REFERENCES.get(like, ("sft",))[0]
    data = {"pt": "pt", _DPO: "dpo"}.get(command, "sft")
    return f"{command} {_model(kind)} --dataset models/{data}.jsonl --output_dir {_output(name)}"


def _reference(like: str, kind: str = "") -> Step:
    """Transformers' own forward pass, without the bridge and without Megatron."""
    name = f"reference {like}"
    words = _words(like, kind or _REFERENCES[like][1], name)
    line = f"swift {words} --tuner_type full {_TRANSFORMERS}"
    return Step(name, line, learns(out=_output(name)))


def _train(
    name: str,
    like: str = "sft",
    more: str = "",
    before: str = "",
    *,
    kind: str = "",
    run: str = "accel-bridge run -- ",
    steps: int | None = None,
    check: Check | None = None,
) -> Step:
    """One of its training commands, compared with the reference ``like``.

    :param steps: so many of the first are compared.
    """
    kind = kind or _REFERENCES[like][1]
    injected = kind.endswith("_injected")
    usual = learns(
        _output(f"reference {like}"),
        _output(name),
        steps=1 if injected else steps,
        falls=not injected,
        injected=injected,
    )
    line = f"{before}{run}megatron {_words(like, kind, name)} {_MEGATRON} {more}"
    return Step(name, line.strip(), check or usual, emulated="emulate-ascend" in before)


def _export(name: str, words: str, check: Check, before: str = "") -> Step:
    line = (
        f"{before}accel-bridge run -- megatron export {words} {_FP32} --output_dir "
        f"{_output(name)} --exist_ok true"
    )
    return Step(name, line, check, emulated="emulate-ascend" in before)


def _back(name: str, there: str, model: str, more: str = "", before: str = "") -> Step:
    """Export of a Megatron checkpoint, whose weights must be those of ``model``."""
    words = f"--mcore_model {there} --to_hf true {more}".strip()
    return _export(name, words, same_weights(model, _output(name)), before)


def _family(title: str, kind: str) -> tuple[Step, ...]:
    """Training beside Transformers', and conversion there and back."""
    there, back = f"export {title} to Megatron", f"export {title} to Hugging Face"
    return (
        _reference(title, kind),
        _train(title, title, kind=kind),
        _export(there, f"{_model(kind)} {_PRECISE}", says("token_diff: 0")),
        _back(back, _output(there), f"models/{kind}"),
    )


_TRAINING: Final = (
    *map(_reference, _REFERENCES),
    _train("sft"),
    _train("pt", "pt"),
    _train("sft LoRA", more="--tuner_type lora --merge_lora true", steps=1),
    _train("sft MoE", "MoE"),
    _train("DPO", "DPO"),
    _train("injected fault, sft", kind="qwen3_injected"),
    _train("injected fault, MoE", "MoE", kind="qwen3_moe_injected"),
    _train("sft by ACCEL_BRIDGE_AUTO", before="ACCEL_BRIDGE_AUTO=1 ", run=""),
    _train(
        "sft with recomputation",
        more="--recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
    ),
    _train("sft streaming", more="--streaming true"),
    _train("sft packed", more="--packing true", steps=1),
)
_RANKS: Final = (
    *(
        _train(f"{like} {title} on two ranks", like, more, _TWO)
        for like, title, more in (
            ("sft", "TP2", _SP),
            ("sft", "PP2", _PP2),
            ("sft", "CP2", "--context_parallel_size 2"),
            ("sft", "DP2", ""),
            ("pt", "TP2", _TP2),
            ("MoE", "EP2", _EP2),
            ("MoE", "TP2 EP2", f"{_SP} {_EP2}"),
            ("DPO", "TP2", _TP2),
            ("DPO", "PP2", _PP2),
        )
    ),
    _train("sft LoRA TP2 on two ranks", "sft", f"--tuner_type lora {_TP2}", _TWO, steps=1),
)
_CHECKPOINTS: Final = (
    _train("sft saved on the way", more="--save_steps 2"),
    _train(
        "sft resumed",
        more="--finetune false --mcore_model out/sft-saved-on-the-way/checkpoint-2",
        check=learns("out/sft", "out/sft-resumed", last=1, falls=False),
    ),
    _export("export to Megatron", f"{_model('qwen3')} {_PRECISE}", says("token_diff: 0")),
    _back("export to Hugging Face", "out/export-to-Megatron", "models/qwen3"),
    _export(
        "export MoE to Megatron, EP2 on two ranks",
        f"{_model('qwen3_moe')} --to_mcore true {_EP2}",
        says(_SAVED),
        _TWO,
    ),
    _back(
        "export MoE to Hugging Face, TP2 on two ranks",
        "out/export-MoE-to-Megatron,-EP2-on-two-ranks",
        "models/qwen3_moe",
        _TP2,
        _TWO,
    ),
    _back("export of what was trained", "out/sft/checkpoint-3", "out/sft/checkpoint-3"),
    Step(
        "swift export to Megatron",
        # It takes float32 for a request of mixed precision, and saves float16.
        f"accel-bridge run -- swift export {_model('qwen3')} --to_mcore true "
        "--torch_dtype bfloat16 --output_dir out/swift-export --exist_ok true",
        says(_SAVED),
    ),
    Step(
        "swift export to Hugging Face",
        "accel-bridge run -- swift export --mcore_model out/swift-export --to_hf true "
        "--torch_dtype bfloat16 --output_dir out/swift-export-hf --exist_ok true",
        same_weights("models/qwen3", "out/swift-export-hf", rounded=True),
    ),
)
#: Two nodes of one rank, both on this machine.
_NODES: Final = (
    "for node in 1 0; do NNODES=2 NODE_RANK=$node NPROC_PER_NODE=1 MASTER_ADDR=127.0.0.1 "
    "MASTER_PORT=29671 {command} & done; wait"
)
_TWO_NODES: Final = _train("sft TP2 on two nodes", more=_TP2)
_RECORDED: Final = (
    replace(_TWO_NODES, command=_NODES.format(command=_TWO_NODES.command)),
    _train("recorded", run="accel-bridge run --record cpu.rec -- "),
    _train("recorded on an EMULATED NPU", before=NPU, run="accel-bridge run --record npu.rec -- "),
    compared("npu.rec"),
    _train(
        "injected fault recorded",
        kind="qwen3_injected",
        run="accel-bridge run --record injected.rec -- ",
    ),
    compared("injected.rec", "are not recordings of the same run"),
)
_EMULATED: Final = (
    *(
        _train(f"{like} {title} on two EMULATED NPUs", like, more, _NPUS)
        for like, title, more in (
            ("sft", "TP2", _TP2),
            ("pt", "PP2", _PP2),
            ("MoE", "EP2", _EP2),
            ("DPO", "TP2", _TP2),
        )
    ),
    _export(
        "export to Megatron on an EMULATED NPU",
        f"{_model('qwen3')} --to_mcore true",
        says(_SAVED),
        NPU,
    ),
    _back(
        "export to Hugging Face on an EMULATED NPU",
        "out/export-to-Megatron-on-an-EMULATED-NPU",
        "models/qwen3",
        before=NPU,
    ),
)

SWIFT: Final = Client(
    name="ms-swift",
    installs=(
        # transformers: mcore-bridge 1.6.5 breaks random models of 5.17 and later (`--test_convert_
        # precision` makes one): it registers a rotary embedding that reads config.rope_theta.
        # msgspec: its preference training imports it, and nothing names it.
        "ms-swift==4.6.0 mcore-bridge==1.6.5 megatron-core==0.19.2 transformers==5.15.1 einops "
        "msgspec",
    ),
    shown=("ms-swift", "mcore-bridge", "megatron-core", "transformers", "torch"),
    steps=(
        *(*_TRAINING, *_RANKS, *_CHECKPOINTS),
        *(step for family in _FAMILIES.items() for step in _family(*family)),
        *(*_EMULATED, *_RECORDED),
    ),
)
