"""Transformers' loss of one conversation, repeated: python packed.py MODEL ROWS.jsonl LENGTH

As Megatron's post_training packs it: an end after each, attention and positions that go on, and no
loss where an end is read or said. Weights are rounded to bfloat16; the arithmetic is float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

directory, rows, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
messages = json.loads(Path(rows).read_text().splitlines()[0])["messages"]
tokenizer = AutoTokenizer.from_pretrained(directory)
text = tokenizer.apply_chat_template(messages, tokenize=False)
ids = tokenizer(text, add_special_tokens=False)["input_ids"]
end = tokenizer.eos_token_id
times = length // len(ids) + 1
tokens = torch.tensor(([*ids, end] * times)[: length + 1])
counts = ((tokens[:-1] != end) & (tokens[1:] != end)).float()
model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).float().eval()
with torch.no_grad():
    logits = model(tokens[None, :-1]).logits[0]
losses = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
print(f"REFERENCE {float((losses * counts).sum() / counts.sum()):.7f}")
