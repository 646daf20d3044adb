"""A whole loop of NeMo-RL's GRPO beside Transformers: loop.py MODEL ROWS

ROWS is what NeMo-RL wrote at each step, `{step}` in it the number of the step: tokens, rewards,
advantages, and the log probabilities that its generator and its policy gave to the answers.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import policy
import torch

model, written = sys.argv[1:]
by_hand = policy.ByHand(model)
for step in itertools.count(1):
    path = Path(written.format(step=step))
    if not path.exists():
        break
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def read(name: str, rows: list[dict[str, list[float]]] = rows) -> torch.Tensor:
        """[rows, longest], or [rows, 1] of what a row has once."""
        return torch.tensor([row[name] for row in rows]).flatten(1)

    tokens, lengths = read("token_ids"), read("input_lengths")
    answers = read("token_loss_mask").float()[:, 1:]
    found = by_hand.log_probs(tokens, (torch.arange(tokens.shape[1]) < lengths).long())
    away = [
        policy.apart(read(name)[:, 1:], found, answers)
        for name in ("generation_logprobs", "prev_logprobs")
    ]
    loss = by_hand.step(found, read("advantages")[:, 1:], answers)
    lengths, rewards = answers.sum(1), read("rewards")[:, 0]
    print(f"LOOP {step} generator {away[0]:.3e}, policy {away[1]:.3e}, loss {loss:.6f}")
