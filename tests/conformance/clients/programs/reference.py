"""Transformers' own loss of one conversation: python reference.py MODEL_DIRECTORY ROWS.jsonl [turn]

Only what the assistant says counts, with the end of its turn; with `turn`, its beginning too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

directory, rows, *turn = sys.argv[1:]
messages = json.loads(Path(rows).read_text().splitlines()[0])["messages"]
tokenizer = AutoTokenizer.from_pretrained(directory)
model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def tokens(count: int, ask: bool) -> list[int]:
    """Of the first ``count`` messages; ``ask`` opens the assistant's turn."""
    text = tokenizer.apply_chat_template(
        messages[:count], tokenize=False, add_generation_prompt=ask
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


whole, prompt = (
    torch.tensor([tokens(len(messages), False)]),
    len(tokens(len(messages) - 1, not turn)),
)
with torch.no_grad():
    logits = model(whole).logits
losses = torch.nn.functional.cross_entropy(logits[0, :-1], whole[0, 1:], reduction="none")
print(f"REFERENCE {float(losses[prompt - 1 :].mean()):.7f}")
