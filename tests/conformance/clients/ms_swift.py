"""ms-swift: its commands, each as a user types it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from conformance.clients.steps import (
    Check,
    Client,
    Step,
    departs,
    same_losses,
    same_weights,
    says,
    trains,
)

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


def _model(kind: str) -> str:
    template = "qwen3" if kind.startswith("qwen3") else "chatml"
    return (
        f"--model models/{kind} --model_type {kind.removesuffix('_injected')} --template {template}"
    )


def _output(name: str) -> str:
    return f"out/{name.replace(' ', '-')}"


def _data(command: str) -> str:
    return {"pt": "pt", _DPO: "dpo"}.get(command, "sft")


def _reference(name: str, command: str, kind: str, more: str = "--tuner_type full") -> Step:
    """Transformers' own forward pass, without the bridge and without Megatron."""
    output = _output(f"reference {name}")
    line = (
        f"swift {command} {_model(kind)} --dataset models/{_data(command)}.jsonl "
        f"--output_dir {output} {more} {_TRANSFORMERS}"
    )
    return Step(f"reference {name}", line, trains(output))


def _train(
    name: str,
    command: str,
    kind: str,
    like: str,
    more: str = "",
    before: str = "",
    run: str = "accel-bridge run -- ",
    check: Check | None = None,
) -> Step:
    """One of its training commands, compared with the reference ``like``."""
    output = _output(name)
    line = (
        f"{before}{run}megatron {command} {_model(kind)} --dataset models/{_data(command)}.jsonl "
        f"--output_dir {output} {_MEGATRON} {more}"
    )
    check = check or trains(output, _output(f"reference {like}"))
    return Step(name, line.strip(), check, emulated="emulate-ascend" in before)


def _family(kind: str, title: str) -> tuple[Step, ...]:
    """Training beside Transformers', and conversion there and back."""
    there, back = f"export {title} to Megatron", f"export {title} to Hugging Face"
    return (
        _reference(title, "sft", kind),
        _train(title, "sft", kind, title),
        _export(
            there,
            f"{_model(kind)} --to_mcore true --test_convert_precision true",
            says("token_diff: 0"),
        ),
        _export(
            back,
            f"--mcore_model {_output(there)} --to_hf true",
            same_weights(f"models/{kind}", _output(back)),
        ),
    )


def _export(name: str, words: str, check: Check, before: str = "") -> Step:
    line = (
        f"{before}accel-bridge run -- megatron export {words} {_FP32} --output_dir "
        f"{_output(name)} --exist_ok true"
    )
    return Step(name, line, check, emulated="emulate-ascend" in before)


_TRAINING: Final = (
    _reference("sft", "sft", "qwen3"),
    _reference("pt", "pt", "qwen3"),
    _reference("MoE", "sft", "qwen3_moe"),
    _reference("DPO", _DPO, "qwen3"),
    _train("sft", "sft", "qwen3", "sft"),
    _train("pt", "pt", "qwen3", "pt"),
    _train(
        "sft LoRA",
        "sft",
        "qwen3",
        "sft",
        "--tuner_type lora --merge_lora true",
        check=trains("out/sft-LoRA", "out/reference-sft", steps=1),
    ),
    _train("sft MoE", "sft", "qwen3_moe", "MoE"),
    _train("DPO", _DPO, "qwen3", "DPO"),
    *(
        _train(
            f"injected fault, {like}",
            "sft",
            f"{kind}_injected",
            like,
            check=departs(_output(f"injected fault, {like}"), _output(f"reference {like}")),
        )
        for kind, like in (("qwen3", "sft"), ("qwen3_moe", "MoE"))
    ),
    _train("sft by ACCEL_BRIDGE_AUTO", "sft", "qwen3", "sft", "", "ACCEL_BRIDGE_AUTO=1 ", ""),
    _train(
        "sft with recomputation",
        "sft",
        "qwen3",
        "sft",
        "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
    ),
    _train("sft streaming", "sft", "qwen3", "sft", "--streaming true"),
    _train(
        "sft packed",
        "sft",
        "qwen3",
        "sft",
        "--packing true",
        check=trains("out/sft-packed", "out/reference-sft", steps=1),
    ),
)
_RANKS: Final = (
    *(
        _train(f"{name} {title} on two ranks", command, kind, name, more, _TWO)
        for name, title, command, kind, more in (
            (
                "sft",
                "TP2",
                "sft",
                "qwen3",
                "--tensor_model_parallel_size 2 --sequence_parallel true",
            ),
            ("sft", "PP2", "sft", "qwen3", "--pipeline_model_parallel_size 2"),
            ("sft", "CP2", "sft", "qwen3", "--context_parallel_size 2"),
            ("sft", "DP2", "sft", "qwen3", ""),
            ("pt", "TP2", "pt", "qwen3", "--tensor_model_parallel_size 2"),
            ("MoE", "EP2", "sft", "qwen3_moe", "--expert_model_parallel_size 2"),
            (
                "MoE",
                "TP2 EP2",
                "sft",
                "qwen3_moe",
                "--tensor_model_parallel_size 2 --sequence_parallel true "
                "--expert_model_parallel_size 2",
            ),
            ("DPO", "TP2", _DPO, "qwen3", "--tensor_model_parallel_size 2"),
            ("DPO", "PP2", _DPO, "qwen3", "--pipeline_model_parallel_size 2"),
        )
    ),
    _train(
        "sft LoRA TP2 on two ranks",
        "sft",
        "qwen3",
        "sft",
        "--tuner_type lora --tensor_model_parallel_size 2",
        _TWO,
        check=trains("out/sft-LoRA-TP2-on-two-ranks", "out/reference-sft", steps=1),
    ),
)
_CHECKPOINTS: Final = (
    _train("sft saved on the way", "sft", "qwen3", "sft", "--save_steps 2"),
    _train(
        "sft resumed",
        "sft",
        "qwen3",
        "sft",
        "--finetune false --mcore_model out/sft-saved-on-the-way/checkpoint-2",
        check=same_losses("out/sft-resumed", "out/sft", last=1),
    ),
    _export(
        "export to Megatron",
        f"{_model('qwen3')} --to_mcore true --test_convert_precision true",
        says("token_diff: 0"),
    ),
    _export(
        "export to Hugging Face",
        "--mcore_model out/export-to-Megatron --to_hf true",
        same_weights("models/qwen3", "out/export-to-Hugging-Face"),
    ),
    _export(
        "export MoE to Megatron, EP2 on two ranks",
        f"{_model('qwen3_moe')} --to_mcore true --expert_model_parallel_size 2",
        says("Successfully saved Megatron model weights"),
        _TWO,
    ),
    _export(
        "export MoE to Hugging Face, TP2 on two ranks",
        "--mcore_model out/export-MoE-to-Megatron,-EP2-on-two-ranks --to_hf true "
        "--tensor_model_parallel_size 2",
        same_weights("models/qwen3_moe", "out/export-MoE-to-Hugging-Face,-TP2-on-two-ranks"),
        _TWO,
    ),
    _export(
        "export of what was trained",
        "--mcore_model out/sft/checkpoint-3 --to_hf true",
        same_weights("out/sft/checkpoint-3", "out/export-of-what-was-trained"),
    ),
    Step(
        "swift export to Megatron",
        # It takes float32 for a request of mixed precision, and saves float16.
        f"accel-bridge run -- swift export {_model('qwen3')} --to_mcore true "
        "--torch_dtype bfloat16 --output_dir out/swift-export --exist_ok true",
        says("Successfully saved Megatron model weights"),
    ),
    Step(
        "swift export to Hugging Face",
        "accel-bridge run -- swift export --mcore_model out/swift-export --to_hf true "
        "--torch_dtype bfloat16 --output_dir out/swift-export-hf --exist_ok true",
        same_weights("models/qwen3", "out/swift-export-hf", rounded=True),
    ),
)
_FAMILIES: Final = (
    *_family("llama", "Llama"),
    *_family("qwen2", "Qwen2.5"),
    *_family("qwen2_moe", "Qwen2-MoE"),
    *_family("qwen3_next", "Qwen3-Next"),
    *_family("glm4", "GLM-4"),
    *_family("glm4_moe", "GLM-4.5"),
    *_family("gpt_oss", "gpt-oss"),
    *_family("deepseek_v3", "DeepSeek-V3"),
)
#: Two nodes of one rank, both on this machine.
_NODES: Final = (
    "for node in 1 0; do NNODES=2 NODE_RANK=$node NPROC_PER_NODE=1 MASTER_ADDR=127.0.0.1 "
    "MASTER_PORT=29671 {command} & done; wait"
)
_TWO_NODES: Final = _train(
    "sft TP2 on two nodes", "sft", "qwen3", "sft", "--tensor_model_parallel_size 2"
)
_RECORDED: Final = (
    replace(_TWO_NODES, command=_NODES.format(command=_TWO_NODES.command)),
    _train("recorded", "sft", "qwen3", "sft", run="accel-bridge run --record cpu.rec -- "),
    _train(
        "recorded on an EMULATED NPU",
        "sft",
        "qwen3",
        "sft",
        before="accel-bridge emulate-ascend --install -- ",
        run="accel-bridge run --record npu.rec -- ",
    ),
    Step(
        "recordings compared",
        "accel-bridge parity compare cpu.rec npu.rec",
        says("PASS: the runs agree"),
        emulated=True,
    ),
    _train(
        "injected fault recorded",
        "sft",
        "qwen3_injected",
        "sft",
        run="accel-bridge run --record injected.rec -- ",
        check=departs("out/injected-fault-recorded", "out/reference-sft"),
    ),
    Step(
        "injected fault compared",
        "! accel-bridge parity compare cpu.rec injected.rec",
        says("are not recordings of the same run"),
    ),
)
_EMULATED: Final = (
    *(
        _train(f"{name} {title} on two EMULATED NPUs", command, kind, name, more, _NPUS)
        for name, title, command, kind, more in (
            ("sft", "TP2", "sft", "qwen3", "--tensor_model_parallel_size 2"),
            ("pt", "PP2", "pt", "qwen3", "--pipeline_model_parallel_size 2"),
            ("MoE", "EP2", "sft", "qwen3_moe", "--expert_model_parallel_size 2"),
            ("DPO", "TP2", _DPO, "qwen3", "--tensor_model_parallel_size 2"),
        )
    ),
    _export(
        "export to Megatron on an EMULATED NPU",
        f"{_model('qwen3')} --to_mcore true",
        says("Successfully saved Megatron model weights"),
        "accel-bridge emulate-ascend --install -- ",
    ),
    _export(
        "export to Hugging Face on an EMULATED NPU",
        "--mcore_model out/export-to-Megatron-on-an-EMULATED-NPU --to_hf true",
        same_weights("models/qwen3", "out/export-to-Hugging-Face-on-an-EMULATED-NPU"),
        "accel-bridge emulate-ascend --install -- ",
    ),
)

SWIFT: Final = Client(
    name="ms-swift",
    installs=(
        # transformers: mcore-bridge 1.6.5 breaks random models of 5.17 and later (`--test_convert_
        # precision` makes one): it registers a rotary embedding that reads config.rope_theta.
        # msgspec: its preference training imports it, and nothing names it.
        (
            *("ms-swift==4.6.0", "mcore-bridge==1.6.5", "megatron-core==0.19.2"),
            *("transformers==5.15.1", "einops", "msgspec"),
        ),
    ),
    shown=("ms-swift", "mcore-bridge", "megatron-core", "transformers", "torch"),
    steps=(*_TRAINING, *_RANKS, *_CHECKPOINTS, *_FAMILIES, *_EMULATED, *_RECORDED),
)
