"""Made-up instruction data, the same at every run, with everything that handlers decide about."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = (
    "the model learns from text and 数据 of many kinds; it's 2026 Grüße naïve emoji 😀 "
    "<think> </think> [INST] Ünïcode\tTab print('a') x==y 你好，世界 Привет κόσμε {{content}} "
    "{{idx}}"
).split(" ")
#: Marks of the templates that a real tokenizer has as single tokens.
MARKS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|observation|>",
    "[gMASK]",
    "sop",
    "<sop>",
)
TOOLS = json.dumps(
    [
        {
            "name": "weather",
            "description": "Weather of a place",
            "parameters": {
                "properties": {
                    "place": {"type": "string", "description": "where"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["place"],
            },
        },
        {"name": "now", "parameters": {"properties": {}}},
    ]
)
CALL = json.dumps({"name": "weather", "arguments": {"place": "北京", "days": [1, 2]}})
#: A tool as some data name it, without parameters: it makes no text.
BROKEN_TOOLS = json.dumps([{"name": "no parameters"}])


def text(chance: random.Random, most: int = 30) -> str:
    """A few words, or a line break among them; sometimes none."""
    count = chance.choice((0, 1, 3, most, chance.randrange(1, most)))
    return chance.choice((" ", "\n", " ")).join(chance.choice(WORDS) for _ in range(count))


def answer(chance: random.Random) -> str:
    """Text, with reasoning before it in some."""
    thought = f"<think>\n{text(chance, 12)}\n</think>\n\n" if chance.random() < 0.3 else ""
    return thought + text(chance, 50)


def alpaca(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Instructions with input, answer, history and system prompt."""
    chance = random.Random(seed)
    return [
        {
            "instruction": text(chance),
            "input": text(chance, 10),
            "output": answer(chance),
            "history": [
                [text(chance, 8), answer(chance)] for _ in range(chance.choice((0, 0, 1, 3)))
            ],
            "system": chance.choice(("", "", text(chance, 6))),
            "chosen": answer(chance),
            "rejected": answer(chance),
        }
        for _ in range(count)
    ]


def filled(count: int) -> list[dict[str, Any]]:
    """Instructions that are never empty."""
    return [{**one, "instruction": "Say: " + one["instruction"]} for one in alpaca(count, 7)]


def sharegpt(
    count: int, seed: int = 2, *, calls: bool = True, tags: Sequence[str] = ("from", "value")
) -> list[dict[str, Any]]:
    """Turns of people, models and tools; some start with a system prompt, some are broken."""
    chance = random.Random(seed)
    role, content = tags
    records = []
    for _ in range(count):
        turns: list[dict[str, Any]] = []
        if chance.random() < 0.2:
            turns.append({role: "system", content: text(chance, 8)})
        for _ in range(chance.choice((1, 1, 2, 4))):
            turns.append({role: "human", content: text(chance)})
            if calls and chance.random() < 0.2:
                call = chance.choice((CALL, "no call"))
                turns.append({role: "function_call", content: call})
                turns.append({role: "observation", content: text(chance, 10)})
            turns.append({role: "gpt", content: answer(chance)})
        accident = chance.random()
        if accident < 0.03:
            turns.pop()
        elif accident < 0.06:
            turns.insert(0, {role: "gpt", content: "first"})
        elif accident < 0.08:
            turns = turns[:1]
        records.append(
            {
                "conversations": turns,
                "system": chance.choice(("", text(chance, 6))),
                "tools": chance.choice(("", "", TOOLS, BROKEN_TOOLS, "no json")),
            }
        )
    return records


def pairs(count: int, seed: int = 3) -> list[dict[str, Any]]:
    """Turns up to a question, with two answers."""
    chance = random.Random(seed)
    records = []
    for record in sharegpt(count, seed, calls=False):
        turns = record["conversations"]
        is_question = turns and turns[-1]["from"] == "gpt"
        records.append(
            {
                "conversations": turns[:-1] if is_question else turns,
                "chosen": {"from": "gpt", "value": answer(chance)},
                "rejected": {"from": "gpt", "value": answer(chance)},
            }
        )
    return records


def chat(count: int, seed: int = 4) -> list[dict[str, Any]]:
    """Messages as chat interfaces keep them."""
    names = {"human": "user", "gpt": "assistant", "observation": "tool"}
    return [
        {
            "messages": [
                {"role": names.get(turn["from"], turn["from"]), "content": turn["value"]}
                for turn in record["conversations"]
            ],
            "tools": record["tools"],
        }
        for record in sharegpt(count, seed)
    ]


def plain(count: int, seed: int = 5) -> list[dict[str, Any]]:
    """Text for pretraining, some of it empty."""
    chance = random.Random(seed)
    return [{"text": text(chance, 80)} for _ in range(count)]


#: Name of a data set -> its records and whether the file is one JSON list.
SETS = {
    "alpaca": (alpaca, True),
    "filled": (filled, True),
    "sharegpt": (sharegpt, False),
    "plain-talk": (lambda count: sharegpt(count, 6, calls=False), True),
    "pairs": (pairs, False),
    "chat": (chat, False),
    "plain": (plain, False),
}


def write(name: str, count: int, directory: Path) -> Path:
    """Write a data set; returns its file."""
    make, is_list = SETS[name]
    records = make(count)
    path = directory / f"{name}-{count}.{'json' if is_list else 'jsonl'}"
    if is_list:
        path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    else:
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        path.write_text(lines, encoding="utf-8")
    return path


def write_tokenizer(directory: Path) -> Path:
    """A tokenizer with the marks of most templates; transformers loads the directory."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|endoftext|>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
