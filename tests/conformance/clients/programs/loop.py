"""A whole loop of reinforcement learning beside Transformers: loop.py MODEL ROWS

ROWS is what was written at each step, by NeMo-RL's GRPO or after ROLL's, `{step}` in it the number
of the step: tokens, rewards, advantages, and the log probabilities that generator and policy gave
to the answers. Where a generator gives none, its answers are greedy: the best of each place.
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
    attention = (torch.arange(tokens.shape[1]) < lengths).long()
    found = by_hand.log_probs(tokens, attention)
    if "generation_logprobs" in rows[0]:
        generated = read("generation_logprobs")[:, 1:]
    else:
        generated = by_hand.model(tokens, attention_mask=attention).logits.log_softmax(-1)
        generated = generated[:, :-1].amax(-1)
    away = [policy.apart(one, found, answers) for one in (generated, read("prev_logprobs")[:, 1:])]
    loss = by_hand.step(found, read("advantages")[:, 1:], answers)
    lengths, rewards = answers.sum(1), read("rewards")[:, 0]
    print(f"LOOP {step} generator {away[0]:.3e}, policy {away[1]:.3e}, loss {loss:.6f}")
