"""slime: its converters and its training, on the Megatron and the SGLang that its image pins.

The training is `train.py` on rollouts from a file: Ray, its Megatron actor and its loss. SGLang is
imported, and generates nothing; it is installed without what it needs a GPU for.
"""

from __future__ import annotations

from typing import Final

from conformance.clients.steps import Check, Client, Step, log_probabilities, same_weights

#: It trains in bfloat16.
_LIMIT: Final = 3e-3
_RUN: Final = "PYTHONPATH=Megatron-LM:slime accel-bridge run --"
_MODEL: Final = (
    "--swiglu --num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 "
    "--group-query-attention --num-query-groups 2 --use-rotary-position-embeddings "
    "--disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 10000 "
    "--vocab-size 320 --kv-channels 16 --qk-layernorm --untie-embeddings-and-output-weights "
    "--make-vocab-size-divisible-by 64"
)


def _there_and_back(name: str, model: str, check: Check) -> Step:
    out = f"out/{name.replace(' ', '-')}"
    line = (
        f"rm -rf {out} && {_RUN} torchrun --standalone --nproc-per-node 1 "
        f"slime/tools/convert_hf_to_torch_dist.py {_MODEL} --hf-checkpoint models/{model} "
        f"--save {out} && {_RUN} python slime/tools/convert_torch_dist_to_hf.py "
        f"--input-dir {out}/release --output-dir {out}/hf --origin-hf-dir models/{model}"
    )
    return Step(name, line, check)


def _train(name: str, model: str, check: Check, ranks: int = 1, more: str = "") -> Step:
    """Three steps of GRPO from the checkpoint of `model`, on rollouts of `qwen3`."""
    out = f"out/{name.replace(' ', '-')}"
    options = (
        "--advantage-estimator grpo --num-rollout 3 --rollout-batch-size 2 "
        "--n-samples-per-prompt 2 --global-batch-size 4 --micro-batch-size 1 --lr 1e-3 "
        "--lr-decay-style constant --weight-decay 0 --adam-beta2 0.95 --attention-dropout 0 "
        "--hidden-dropout 0 --accumulate-allreduce-grads-in-fp32 "
        "--prompt-data $PWD/models/sft.jsonl --input-key messages"
    )
    line = (
        f"{_RUN} torchrun --standalone --nproc-per-node 1 slime/tools/convert_hf_to_torch_dist.py "
        f"{_MODEL} --hf-checkpoint models/{model} --save {out}/start && RAY_ADDRESS=local "
        f"""RAY_OVERRIDE_RESOURCES='{{"GPU":{ranks},"CPU":8}}' """
        "PYTHONPATH=$PWD/Megatron-LM:$PWD/slime "
        f"accel-bridge run -- python slime/train.py {_MODEL} {options} --actor-num-nodes 1 "
        f"--actor-num-gpus-per-node {ranks} --num-gpus-per-node {ranks}{more} "
        f"--hf-checkpoint $PWD/models/{model} --ref-load $PWD/{out}/start "
        "--load-debug-rollout-data $PWD/rollouts.pt "
        f"--save-debug-train-data $PWD/{out}/{{rollout_id}}.pt && "
        f"python grpo.py compare models/qwen3 rollouts.pt {out}/{{rollout_id}}.pt 3"
    )
    return Step(name, line, check)


SLIME: Final = Client(
    name="slime",
    installs=(
        # Its own requirement, which it asserts: numpy 1.
        "numpy==1.26.4 scipy==1.17.1 pandas==2.2.3 contourpy==1.3.2",
        "transformers==5.12.1 torch==2.13.0 megatron-core==0.19.2 omegaconf",
        "datasets<5 pyarrow<22 accelerate pylatexenc ray httpx[http2] tensorboard sentencepiece "
        "six wandb",
        # What SGLang imports; its other requirements are CUDA libraries.
        "--no-deps sglang==0.5.15.post1 torch-memory-saver==0.0.10 torchvision",
        "sglang-router==0.3.2 pybase64 msgspec ipython openai anthropic",
        "partial-json-parser openai-harmony==0.0.4 prometheus-client gguf",
        "compressed-tensors interegular python-multipart setproctitle uvloop",
        "nvidia-ml-py pyzmq blobfile==3.0.0 easydict watchfiles py-spy",
    ),
    shown=("sglang", "ray", "transformers", "numpy", "torch"),
    sources=(
        ("https://github.com/THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515"),
        ("https://github.com/NVIDIA/Megatron-LM", "1dcf0dafa884ad52ffb243625717a3471643e087"),
    ),
    steps=(
        _there_and_back(
            "there and back",
            "qwen3",
            same_weights("models/qwen3", "out/there-and-back/hf", rounded=True),
        ),
        _there_and_back(
            "injected fault",
            "qwen3_injected",
            same_weights("models/qwen3", "out/injected-fault/hf", rounded=True, injected=True),
        ),
        Step(
            "reference rollouts",
            "python grpo.py write models/qwen3 rollouts.pt",
            lambda *_: "written",
        ),
        _train("GRPO", "qwen3", log_probabilities(_LIMIT)),
        _train(
            "GRPO TP2",
            "qwen3",
            log_probabilities(_LIMIT),
            2,
            # Logits of padded rows would count: 320 must stay 320.
            " --tensor-model-parallel-size 2 --make-vocab-size-divisible-by 32",
        ),
        _train("injected fault in GRPO", "qwen3_injected", log_probabilities(_LIMIT, found=True)),
    ),
)
