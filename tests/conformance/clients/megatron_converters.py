"""Megatron-LM's checkpoint converter, in releases where it runs, against Transformers."""

from __future__ import annotations

from typing import Final

from conformance.clients.megatron_lm import generated
from conformance.clients.steps import Client, Step, says

_PROMPTS: Final = '"What is six times seven?" "hello world, hello"'
_MODEL: Final = (
    "--num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 "
    "--group-query-attention --num-query-groups 2 --kv-channels 16 --seq-length 64 "
    "--make-vocab-size-divisible-by 134 --max-position-embeddings 512 "
    "--untie-embeddings-and-output-weights --swiglu --normalization RMSNorm --norm-epsilon 1e-6 "
    "--disable-bias-linear --position-embedding-type rope --rotary-base 10000 "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model models/llama3 --micro-batch-size 1"
)


def _convert(name: str, version: str, loader: str, words: str) -> Step:
    tree = f"Megatron-LM-core_v{version}"
    line = (
        f"PYTHONPATH={tree} accel-bridge run -- python {tree}/tools/checkpoint/convert.py "
        f"--model-type GPT --loader {loader} --saver core {words}"
    )
    return Step(name, line, says("Done!"))


def _from_llama(name: str, version: str, model: str, out: str) -> Step:
    words = (
        f"--bf16 --checkpoint-type hf --model-size llama3 --load-dir models/{model} "
        f"--save-dir out/{out} --tokenizer-model models/{model} --make-vocab-size-divisible-by 134 "
        "--target-tensor-parallel-size 2 --target-pipeline-parallel-size 1"
    )
    return _convert(name, version, "llama_mistral", words)


def _answers(name: str, load: str, layout: str, injected: bool = False) -> Step:
    tree, out = "Megatron-LM-core_v0.17.1", f"out/{name.replace(' ', '-')}.json"
    line = (
        f"PYTHONPATH={tree} accel-bridge run -- torchrun --standalone --nproc-per-node 2 "
        f"{tree}/examples/inference/gpt/gpt_dynamic_inference.py {_MODEL} --load out/{load} "
        f"--ckpt-format torch {layout} --inference-rng-tracker "
        "--inference-dynamic-batching-buffer-size-gb 0.01 --incoming-requests-per-step 1 "
        f"--prompts {_PROMPTS} --num-tokens-to-generate 12 --return-log-probs "
        f"--termination-id 267 --output-path {out}"
    )
    return Step(name, line, generated(out, injected))


_TP2: Final = "--tensor-model-parallel-size 2"
CONVERTERS: Final = Client(
    name="Megatron-LM's checkpoint converter",
    installs=(
        # 0.17's loader takes no Transformers 5: it asks for a minor version of at least 31.
        "megatron-core==0.17.1 transformers==4.57.6 torch==2.13.0 omegaconf",
        "datasets<5 pulp simpy pyzmq msgpack psutil accelerate six",
    ),
    shown=("megatron-core", "transformers", "torch"),
    sources=(
        ("https://github.com/NVIDIA/Megatron-LM", "core_v0.12.1"),
        ("https://github.com/NVIDIA/Megatron-LM", "core_v0.17.1"),
    ),
    steps=(
        Step(
            "reference",
            f"python generation.py models/llama3 out/reference.json 12 {_PROMPTS}",
            lambda work, printed: "written",
        ),
        _from_llama("llama_mistral to TP2", "0.17.1", "llama3", "tp2"),
        _answers("answers of TP2", "tp2", _TP2),
        _from_llama("llama_mistral to TP2, 0.12.1", "0.12.1", "llama3", "old"),
        _convert(
            "core to core, PP2, 0.12.1",
            "0.12.1",
            "core",
            "--load-dir out/old --save-dir out/pp2 --target-tensor-parallel-size 1 "
            "--target-pipeline-parallel-size 2",
        ),
        _answers("answers of PP2", "pp2", "--pipeline-model-parallel-size 2"),
        _from_llama("llama_mistral with an error", "0.17.1", "llama3_injected", "injected"),
        _answers("injected fault", "injected", _TP2, injected=True),
    ),
)
