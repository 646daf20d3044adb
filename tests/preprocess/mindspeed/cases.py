"""What is compared: command lines that MindSpeed-LLM's tool and ours both take."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

#: Templates whose conversations may hold tools and their calls, as far as the judge survives them.
_CALLING = (
    "alpaca",
    "baichuan2",
    "chatglm2",
    "chatglm3",
    "chatglm3_system",
    "chatml",
    "chatml_de",
    "cpm",
    "deepseek2",
    "deepseek2-lite",
    "deepseek3",
    "default",
    "gemma",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "hunyuan",
    "intern2",
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "plm",
    "qwen",
    "qwen_lf",
    "qwen_math_r1",
    "trl",
)
_ALL = (*_CALLING, "qwen3", "bailing_mini")
_SYSTEM_AND_TOOLS = '{"system": "system", "tools": "tools"}'
_HISTORY = '{"history": "history", "system": "system"}'


@dataclass(frozen=True)
class Case:
    """One comparison.

    :param data: name of a data set of :mod:`.samples`.
    :param words: the flags, without input, output and tokenizer.
    """

    name: str
    data: str
    words: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """What is written."""
        if "Pretrain" in self.words[1]:
            return ("text",)
        if "Pairwise" in self.words[1]:
            sides = ("chosen", "rejected")
            return tuple(f"{side}_{part}" for side in sides for part in ("input_ids", "labels"))
        row = ("input_ids", "attention_mask", "labels")
        return row[:2] if self.words[1].startswith("PPO") else row


def _case(name: str, data: str, handler: str, *words: str) -> Case:
    return Case(name, data, ("--handler-name", handler, *words))


def _instruction(name: str, style: str, data: str, template: str, *words: str) -> Case:
    handler = f"{style}StyleInstructionHandler"
    return _case(name, data, handler, "--prompt-type", template, *words)


CASES = (
    *(
        _instruction(
            f"alpaca-{name}",
            "Alpaca",
            "alpaca",
            name,
            "--seq-length",
            "160",
            "--map-keys",
            _HISTORY,
        )
        for name in _ALL
    ),
    *(
        _instruction(
            f"sharegpt-{name}",
            "Sharegpt",
            "sharegpt",
            name,
            "--seq-length",
            "200",
            "--map-keys",
            _SYSTEM_AND_TOOLS,
        )
        for name in _CALLING
    ),
    *(
        _instruction(f"talk-{name}", "Sharegpt", "plain-talk", name, "--seq-length", "200")
        for name in ("qwen3", "bailing_mini")
    ),
    *(
        _instruction(
            f"thinking-{thinking}-{name}",
            "Sharegpt",
            "plain-talk",
            name,
            *("--enable-thinking", thinking, "--seq-length", "4096"),
        )
        for thinking in ("true", "false")
        for name in ("qwen3", "gpt_oss", "glm4_moe")
    ),
    *(
        _instruction(
            f"{packing}-{name}",
            "Sharegpt",
            "plain-talk",
            name,
            *("--pack", "--seq-length", "256", *(["--neat-pack"] if packing == "neat" else [])),
        )
        for packing in ("pack", "neat")
        for name in ("qwen3", "llama3", "glm4", "qwen_lf")
    ),
    *(
        _instruction(f"eod-{name}", "Alpaca", "alpaca", name, "--append-eod")
        for name in ("qwen", "llama3", "gemma")
    ),
    *(
        _case(f"chat-{name}", "chat", "OpenAIInstructionHandler", "--prompt-type", name)
        for name in ("qwen", "llama3", "default")
    ),
    *(
        _case(
            f"alpaca-pairs-{name}",
            "alpaca",
            "AlpacaStylePairwiseHandler",
            "--prompt-type",
            name,
            "--map-keys",
            '{"history": "history"}',
            "--seq-length",
            "300",
        )
        for name in ("qwen3", "llama3", "glm4", "gpt_oss")
    ),
    *(
        _case(
            f"pairs-{name}",
            "pairs",
            "SharegptStylePairwiseHandler",
            "--prompt-type",
            name,
            "--enable-thinking",
            "true",
        )
        for name in ("qwen3", "llama2", "qwen_lf")
    ),
    *(
        _case(
            f"prompts-{name}",
            "alpaca",
            "PPOAlpacaStyleInstructionHandler",
            "--prompt-type",
            name,
            "--seq-length",
            "128",
        )
        for name in ("qwen", "glm4")
    ),
    # A row without any token stops the judge, and this template adds none.
    _instruction("alpaca-empty", "Alpaca", "filled", "empty", "--seq-length", "160"),
    _case("text", "plain", "GeneralPretrainHandler"),
    _case("text-eod", "plain", "GeneralPretrainHandler", "--append-eod", "--seq-length", "100"),
)


def digest(prefix: Path, case: Case) -> str:
    """Of all files that a run wrote, names of their keys included."""
    found = hashlib.sha256()
    inner = "" if case.keys == ("text",) else "_packed"
    for key in case.keys:
        for suffix in (".idx", ".bin"):
            found.update(key.encode())
            found.update(Path(f"{prefix}{inner}_{key}_document{suffix}").read_bytes())
    return found.hexdigest()
