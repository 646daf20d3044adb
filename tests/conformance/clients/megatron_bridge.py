"""Megatron-Bridge: conversion through its API, and its own recipes, scaled down."""

from __future__ import annotations

import json
import re
from typing import Final

from conformance.clients.steps import (
    NPU,
    TOLERANCE,
    Check,
    Client,
    Failed,
    Step,
    Work,
    compared,
    judged,
    learns,
    same_weights,
)

_TP2: Final = "model.tensor_model_parallel_size=2"
_TWO: Final = "torchrun --standalone --nproc-per-node 2"


def converts(work: Work, printed: str) -> str:
    """auto_bridge.py's report: near logits, an injected fault that shows, equal tensors."""
    report = json.loads(re.findall(r"^REPORT (.*)$", printed, re.MULTILINE)[-1])
    words = (
        f"logits {report['logits']:.1e} from Hugging Face's (an injected fault: "
        f"{report['injected']:.1e}); {report['tensors'] - len(report['changed'])} of "
        f"{report['tensors']} tensors equal after the round trip"
    )
    same = report["injected"] > TOLERANCE and not report["changed"]
    return judged(words, report["logits"] <= TOLERANCE and same)


def written(directory: str) -> Check:
    """A checkpoint of Megatron's is there."""

    def check(work: Work, printed: str) -> str:
        if not (work.directory / directory / "latest_checkpointed_iteration.txt").exists():
            raise Failed(f"{directory} has no checkpoint")
        return "written"

    return check


_EACH: Final = (
    "train.global_batch_size=4 train.micro_batch_size=1 logger.log_interval=1 "
    "validation.eval_iters=0 checkpoint.save_interval=2 scheduler.lr_warmup_iters=0 "
    "ddp.grad_reduce_in_fp32=true"
)
#: A recipe whose model is all overrides; its data is made up. Each rank would drop other numbers.
_GPT: Final = (
    "vanilla_gpt_pretrain_config model.num_layers=2 model.hidden_size=64 "
    "model.num_attention_heads=4 model.ffn_hidden_size=128 model.hidden_dropout=0.0 "
    "model.attention_dropout=0.0 dataset.seq_length=64 "
    f"tokenizer.vocab_size=255 optimizer.lr=1e-2 {_EACH} train.train_iters=4"
)
#: Recipes of the model that lies in meta-llama/Llama-3.2-1B, and rows of text.
_TUNE: Final = (
    "data=models/rows model=meta-llama/Llama-3.2-1B checkpoint.pretrained_checkpoint=mcore/llama "
    f"train.train_iters=3 optimizer.lr=1e-3 {_EACH}"
)


_WRONG: Final = "model.layernorm_epsilon=0.1"


def _train(
    name: str,
    check: Check,
    more: str = "",
    launcher: str = "",
    *,
    recipe: str = _GPT,
    directory: str = "",
    run: str = "accel-bridge run",
) -> Step:
    """A recipe's training: pre-training on made-up data, four steps, where none is named."""
    run = f"{run} -- {launcher}" if launcher else run
    place = directory or name.replace(" ", "-")
    words = f"{recipe} checkpoint.save=out/{place} checkpoint.load=out/{place} {more}"
    return Step(name, f"{run} recipe.py {words.strip()}", check, "emulate-ascend" in run)


def _tune(name: str, kind: str, check: Check, *more: str) -> Step:
    """Fine-tuning of the Hugging Face model that was imported."""
    return _train(name, check, *more, recipe=f"llama32_1b_{kind}_config {_TUNE}")


#: Recipes name their model as a hub does; Transformers takes a directory of that name instead.
_HUB: Final = "mkdir -p meta-llama && ln -sfn ../models/llama meta-llama/Llama-3.2-1B"
_API: Final = 'python -c "from megatron.bridge import AutoBridge as B;'
_IMPORT: Final = f"{_API} B.import_ckpt('models/llama', 'mcore/llama', torch_dtype='float32')\""
_EXPORT: Final = (
    f"{_API} B.from_hf_pretrained('models/llama').export_ckpt('mcore/llama', 'out/llama')\""
)

BRIDGE: Final = Client(
    name="Megatron-Bridge",
    installs=(
        # Of its dependencies some are built for CUDA alone (fast-hadamard-transform, flashinfer).
        "--no-deps megatron-bridge==0.6.2",
        "transformers==5.12.1 peft==0.21.2 datasets==5.2.0 hydra-core==1.3.8 "
        "nvidia-modelopt==0.47.0 nvidia-resiliency-ext==0.4.1 qwen-vl-utils "
        "mistral-common==1.13.1 wandb==0.29.0 megatron-core==0.19.2 accelerate omegaconf "
        "megatron-energon==7.4.1 einops tensorboard diffusers==0.42.1",
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
            f"accel-bridge run -- {_TWO} auto_bridge.py models/qwen3_moe back/qwen3_moe_2",
            converts,
        ),
        Step("import", f"{_HUB} && accel-bridge run -- {_IMPORT}", written("mcore/llama")),
        Step("export", f"accel-bridge run -- {_EXPORT}", same_weights("models/llama", "out/llama")),
        _train("pretrain", learns()),
        _train(
            "pretrain resumed",
            learns("pretrain", start=3),
            "checkpoint.ckpt_step=2",
            directory="pretrain",
        ),
        _train("injected fault", learns("pretrain", injected=True), _WRONG),
        _train("pretrain DP2", learns("pretrain"), "", _TWO),
        # Split models draw other first weights; `sft TP2` begins with the same ones.
        _train("pretrain TP2", learns(), f"{_TP2} model.sequence_parallel=true", _TWO),
        _train(
            "pretrain PP2",
            learns(),
            "model.pipeline_model_parallel_size=2 model.pipeline_dtype=torch.float32",
            _TWO,
        ),
        _train("recorded", learns("pretrain"), run="accel-bridge run --record cpu.rec"),
        _train(
            "injected fault recorded",
            learns("pretrain", injected=True),
            _WRONG,
            run="accel-bridge run --record injected.rec",
        ),
        compared("injected.rec", "FAIL: the runs do not agree"),
        _train(
            "recorded on an EMULATED NPU",
            learns("pretrain"),
            run=f"{NPU}accel-bridge run --record npu.rec",
        ),
        compared("npu.rec"),
        _tune("sft", "sft", learns()),
        _tune("sft TP2", "sft", learns("sft"), _TP2, _TWO),
        _tune("lora", "peft", learns()),
        _tune("lora TP2", "peft", learns(), _TP2, _TWO),
    ),
)
