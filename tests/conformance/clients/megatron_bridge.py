"""Megatron-Bridge: conversion through its API, and its own recipes, scaled down."""

from __future__ import annotations

import json
import re
from typing import Final

from conformance.clients.steps import (
    TOLERANCE,
    Check,
    Client,
    Failed,
    Step,
    Work,
    judged,
    printed_losses,
    same_weights,
    says,
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


def learns(like: str = "", start: int = 1, far: bool = False) -> Check:
    """The loss falls, and is at each iteration that of the step ``like``.

    :param start: the first iteration.
    :param like: without it, the first loss is Transformers' own of the same batch, where the
        command printed that.
    :param far: an injected fault: the losses must differ.
    """

    def check(work: Work, printed: str) -> str:
        found = printed_losses(printed)
        first, last = min(found), max(found)
        words = f"loss {found[first]:.5f} at step {first}, {found[last]:.5f} at {last}"
        if first != start:
            raise Failed(f"{words}: it did not begin at {start}")
        if not found[last] < found[first]:
            raise Failed(f"{words} does not fall")
        if like:
            expected = printed_losses(work.log(like).read_text(errors="replace"))
            apart = max(abs(found[step] - expected[step]) for step in found)
            words += f"; {apart:.1e} from `{like}`"
        elif theirs := re.findall(r"^TRANSFORMERS (\S+)$", printed, re.MULTILINE):
            apart = abs(found[first] - float(theirs[0]))
            words += f"; {apart:.1e} from Hugging Face's"
        else:
            return words
        return judged(words, apart <= TOLERANCE, far)

    return check


def _recipe(words: str, launcher: str = "", run: str = "accel-bridge run") -> str:
    if launcher:
        run = f"{run} -- {launcher}"
    return f"{run} recipe.py {words}"


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
    f"tokenizer.vocab_size=255 optimizer.lr=1e-2 {_EACH}"
)
#: Recipes of the model that lies in meta-llama/Llama-3.2-1B, and rows of text.
_TUNE: Final = (
    "data=models/rows model=meta-llama/Llama-3.2-1B checkpoint.pretrained_checkpoint=mcore/llama "
    f"train.train_iters=3 optimizer.lr=1e-3 {_EACH}"
)


_WRONG: Final = "model.layernorm_epsilon=0.1"


def _places(directory: str) -> str:
    return f"checkpoint.save=out/{directory} checkpoint.load=out/{directory}"


def _gpt(name: str, check: Check, more: str = "", launcher: str = "", directory: str = "") -> Step:
    """Pre-training on made-up data, four steps."""
    words = f"{_GPT} train.train_iters=4 {_places(directory or name.replace(' ', '-'))} {more}"
    return Step(name, _recipe(words.strip(), launcher), check)


def _recorded(name: str, file: str, check: Check, more: str = "", before: str = "") -> Step:
    """The same, whose steps are written down."""
    words = f"{_GPT} train.train_iters=4 {_places(name.replace(' ', '-'))} {more}"
    command = _recipe(words.strip(), run=f"{before}accel-bridge run --record {file}")
    return Step(name, command, check, emulated=bool(before))


def _llama(name: str, kind: str, check: Check, more: str = "", launcher: str = "") -> Step:
    """Fine-tuning of the Hugging Face model that was imported."""
    words = f"llama32_1b_{kind}_config {_TUNE} {_places(name.replace(' ', '-'))} {more}"
    return Step(name, _recipe(words.strip(), launcher), check)


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
        ("--no-deps", "megatron-bridge==0.6.2"),
        (
            *("transformers==5.12.1", "peft==0.21.2", "datasets==5.2.0", "hydra-core==1.3.8"),
            *("nvidia-modelopt==0.47.0", "nvidia-resiliency-ext==0.4.1", "qwen-vl-utils"),
            *(
                "mistral-common==1.13.1",
                "wandb==0.29.0",
                "megatron-core==0.19.2",
                "accelerate",
                "omegaconf",
            ),
            *("megatron-energon==7.4.1", "einops", "tensorboard", "diffusers==0.42.1"),
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
            f"accel-bridge run -- {_TWO} auto_bridge.py models/qwen3_moe back/qwen3_moe_2",
            converts,
        ),
        Step("import", f"{_HUB} && accel-bridge run -- {_IMPORT}", written("mcore/llama")),
        Step("export", f"accel-bridge run -- {_EXPORT}", same_weights("models/llama", "out/llama")),
        _gpt("pretrain", learns()),
        _gpt("pretrain resumed", learns("pretrain", 3), "checkpoint.ckpt_step=2", "", "pretrain"),
        _gpt("injected fault", learns("pretrain", far=True), _WRONG),
        _gpt("pretrain DP2", learns("pretrain"), "", _TWO),
        # Split models draw other first weights; `sft TP2` begins with the same ones.
        _gpt("pretrain TP2", learns(), f"{_TP2} model.sequence_parallel=true", _TWO),
        _gpt(
            "pretrain PP2",
            learns(),
            "model.pipeline_model_parallel_size=2 model.pipeline_dtype=torch.float32",
            _TWO,
        ),
        _recorded("recorded", "cpu.rec", learns("pretrain")),
        _recorded("injected fault recorded", "injected.rec", learns("pretrain", far=True), _WRONG),
        Step(
            "injected fault compared",
            "! accel-bridge parity compare cpu.rec injected.rec",
            says("FAIL: the runs do not agree"),
        ),
        _recorded(
            "recorded on an EMULATED NPU",
            "npu.rec",
            learns("pretrain"),
            before="accel-bridge emulate-ascend --install -- ",
        ),
        Step(
            "recordings compared",
            "accel-bridge parity compare cpu.rec npu.rec",
            says("PASS: the runs agree"),
            emulated=True,
        ),
        _llama("sft", "sft", learns()),
        _llama("sft TP2", "sft", learns("sft"), _TP2, _TWO),
        _llama("lora", "peft", learns()),
        _llama("lora TP2", "peft", learns(), _TP2, _TWO),
    ),
)
