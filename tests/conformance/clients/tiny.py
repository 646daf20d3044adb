"""Tiny random models with a byte tokenizer, and data for them: python tiny.py DIRECTORY."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_COMMON: Final[dict[str, Any]] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS: Final[dict[str, Any]] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
#: Experts as DeepSeek spells them.
_SPELLED: Final[dict[str, Any]] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}
_LATENT: Final[dict[str, Any]] = {
    **_SPELLED,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "routed_scaling_factor": 1.5,
}
#: The same without latent attention.
_SHARED: Final[dict[str, Any]] = {**_SPELLED, "head_dim": 16}
_DELTA: Final[dict[str, Any]] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 64,
}
_SINKS: Final[dict[str, Any]] = {
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
#: Name -> the class of its configuration, and what differs from the others.
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("LlamaConfig", {}),
    # As many words as the tokenizer, which Megatron's converter counts, and a length it insists on.
    "llama3": ("LlamaConfig", {"vocab_size": 268, "max_position_embeddings": 8192}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    # As wide heads as vLLM has on a CPU, and no answer that the tokenizer cannot write.
    "qwen3_served": ("Qwen3Config", {"head_dim": 32, "vocab_size": 268}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 16, **_EXPERTS}),
    # The last two stand in the configuration of the real one, and in no class of Transformers.
    "deepseek_v3": (
        "DeepseekV3Config",
        {**_LATENT, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    ),
    "qwen2_moe": ("Qwen2MoeConfig", {**_EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3_next": ("Qwen3NextConfig", {**_EXPERTS, **_DELTA}),
    "glm4": ("Glm4Config", {"head_dim": 16, "partial_rotary_factor": 0.5}),
    "glm4_moe": ("Glm4MoeConfig", {**_SHARED, "use_qk_norm": True, "partial_rotary_factor": 0.5}),
    "gpt_oss": ("GptOssConfig", _SINKS),
}
#: There is a directory NAME_injected with an error in it, too.
INJECTED: Final = ("llama3", "qwen3", "qwen3_served", "qwen3_moe")
_QUESTION: Final = [
    {"role": "user", "content": "What is six times seven?"},
    {"role": "assistant", "content": "It is 42, of course."},
]
_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Rows of one kind are equal: any order of them gives the same batches, in every framework.
DATA: Final[dict[str, dict[str, Any]]] = {
    "pt": {"messages": [_QUESTION[1]]},
    "sft": {"messages": _QUESTION},
    "dpo": {"messages": _QUESTION, "rejected_response": "I do not know."},
}


def make_tokenizer(directory: Path) -> None:
    """Bytes, and three special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special)
    tokenizer.train_from_iterator(["hello world"] * 10, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0]
    )
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(directory)


def make_model(name: str, directory: Path) -> torch.nn.Module:
    """A random model in float32, whose norms and biases are not ones and zeros; saved."""
    config, options = MODELS[name]
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**{**_COMMON, **options}), dtype=torch.float32
    )
    with torch.no_grad():
        for parameter, tensor in made.named_parameters():
            if "norm" in parameter or "bias" in parameter:
                tensor.add_(torch.randn_like(tensor) * 0.1)
    made.eval().save_pretrained(directory)
    make_tokenizer(directory)
    return made


def inject(made: torch.nn.Module, directory: Path) -> None:
    """The same model with one row of one weight changed: a check must notice it."""
    wrong = next(one for name, one in made.named_parameters() if "o_proj" in name)
    with torch.no_grad():
        wrong[0] += 0.1
    made.save_pretrained(directory)  # type: ignore[operator]
    make_tokenizer(directory)


def main(directory: Path) -> None:
    """Every model, some with an injected fault, and every kind of data."""
    for name in MODELS:
        made = make_model(name, directory / name)
        if name in INJECTED:
            inject(made, directory / f"{name}_injected")
    for name, row in DATA.items():
        (directory / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * 64)
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist([row] * 64), directory / f"{name}.parquet"
        )
    pair = {"input": _QUESTION[0]["content"], "output": _QUESTION[1]["content"]}
    text = {"text": " ".join(message["content"] for message in _QUESTION)}
    (directory / "text.jsonl").write_text(f"{json.dumps(text)}\n" * 8)
    (directory / "rows").mkdir(exist_ok=True)
    (directory / "rows/training.jsonl").write_text(f"{json.dumps(pair)}\n" * 64)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
