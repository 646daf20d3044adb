"""Transformers' greedy continuations: python generation.py MODEL OUT.json TOKENS PROMPT...

The weights are rounded to bfloat16, as in a checkpoint of that type; the arithmetic is float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

directory, out, count, *prompts = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(directory)
model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).float().eval()
rows = []
for prompt in prompts:
    given = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    ids = given
    for _ in range(int(count)):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    made = ids[0, given.shape[1] :].tolist()
    rows.append({"tokens": made, "text": tokenizer.decode(made), "logprobs": logprobs.tolist()})
Path(out).parent.mkdir(parents=True, exist_ok=True)
Path(out).write_text(json.dumps(rows))
