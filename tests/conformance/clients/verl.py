"""verl: supervised fine-tuning on its Megatron engine, without an inference engine."""

from __future__ import annotations

from typing import Final

from conformance.clients.steps import (
    NPU,
    Check,
    Client,
    Step,
    compared,
    learns,
    same_weights,
    says,
)

#: What its parts for Megatron need; of its extras the rest is built for CUDA alone.
_PACKAGES: Final = (
    "transformers==5.9.0 tensordict==0.10.0 torchdata==0.11.0 peft==0.21.2 datasets==5.2.0 "
    "hydra-core==1.3.8 codetiming pylatexenc fastapi uvicorn pyzmq cachetools nvtx ray==2.60.0 "
    "megatron-core==0.19.2 accelerate omegaconf einops nvidia-modelopt==0.47.0 "
    "nvidia-resiliency-ext==0.4.1 qwen-vl-utils tensorboard mistral-common==1.13.1 wandb==0.29.0 "
    "megatron-energon==7.4.1 diffusers==0.42.1"
)
_SFT: Final = (
    "-m verl.trainer.sft_trainer model.path=models/{model} engine=megatron optim=megatron "
    "optim.lr=1e-3 engine.dtype=bfloat16 data.train_files=models/sft.parquet "
    "data.train_batch_size=4 data.micro_batch_size_per_gpu=2 data.use_dynamic_bsz=False "
    "data.max_length=128 data.num_workers=0 trainer.logger=[console] trainer.total_epochs=1 "
    "trainer.total_training_steps=4 trainer.save_freq=2"
)


#: Its Megatron engine takes no float32: two bfloat16 runs may differ by a rounding of the logits.
BFLOAT16: Final = 2e-2


def _sft(
    name: str,
    check: Check,
    more: str = "",
    ranks: int = 1,
    model: str = "qwen3",
    npu: bool = False,
    record: str = "",
) -> Step:
    directory = f"trainer.default_local_dir=out/{name.replace(' ', '-')}"
    run = f"accel-bridge run {f'--record {record}.rec ' if record else ''}--"
    line = (
        f"{NPU if npu else ''}{run} torchrun --standalone --nproc-per-node {ranks} "
        f"{_SFT.format(model=model)} trainer.n_gpus_per_node={ranks} {directory} {more}"
    )
    return Step(name, line.strip(), check, emulated=npu)


#: What `save_freq` writes is a directory that Transformers reads.
_SAVED: Final = "global_step_2/model/huggingface"


def _there_and_back(name: str, more: str = "", ranks: int = 1) -> Step:
    """What it loads and saves after two steps that learn nothing."""
    words = f"optim.lr=0 optim.min_lr=0 trainer.total_training_steps=2 {more}".strip()
    saved = f"out/{name.replace(' ', '-')}/{_SAVED}"
    return _sft(name, same_weights("models/qwen3", saved, rounded=True), words, ranks)


VERL: Final = Client(
    name="verl",
    installs=("--no-deps verl==0.9.1 megatron-bridge==0.6.2", _PACKAGES),
    shown=("verl", "megatron-bridge", "megatron-core", "transformers", "tensordict", "torch"),
    steps=(
        Step(
            "reference",
            "python reference.py models/qwen3 models/sft.jsonl",
            says("REFERENCE"),
        ),
        _sft("sft", learns("reference", near=BFLOAT16)),
        _sft(
            "sft resumed",
            learns("sft", start=3),
            "trainer.resume_mode=resume_path trainer.resume_from_path=out/sft/global_step_2",
        ),
        _sft("recorded", learns("sft"), record="cpu"),
        _sft(
            "injected fault",
            learns("sft", injected=True, near=BFLOAT16),
            model="qwen3_injected",
            record="injected",
        ),
        compared("injected.rec", "are not recordings of the same run"),
        _sft("sft TP2", learns("sft", near=BFLOAT16), "engine.tensor_model_parallel_size=2", 2),
        _there_and_back("there and back"),
        _there_and_back("there and back TP2", "engine.tensor_model_parallel_size=2", 2),
        _sft("sft on an EMULATED NPU", learns("sft", near=BFLOAT16), npu=True),
        _sft(
            "recorded on an EMULATED NPU",
            learns("sft", near=BFLOAT16),
            npu=True,
            record="npu",
        ),
        compared("npu.rec"),
    ),
)
