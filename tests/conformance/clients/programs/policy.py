"""A policy that a framework trains, beside Transformers' own, in float32.

Random answers of different lengths; the advantage of each is given, so no answer need be good.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

PROMPT, LENGTHS, ADVANTAGES = 8, (32, 28, 24, 32), (-1.0, 0.5, 1.0, -0.5)
RATE, BETAS, STEPS = 1e-3, (0.9, 0.95), 3

Rows = list[torch.Tensor]


def rows() -> Rows:
    """Tokens of prompt and answer, one row for each of ``LENGTHS``: int64."""
    torch.manual_seed(5)
    return [torch.randint(3, 300, (length,)) for length in LENGTHS]


def padded(values: Rows) -> torch.Tensor:
    """Rows in one tensor, zeros behind them: [rows, longest]."""
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)


def masks() -> tuple[torch.Tensor, torch.Tensor]:
    """What is no padding, and what is answer: two of [rows, longest], int64."""
    ones = [torch.ones(length, dtype=torch.int64) for length in LENGTHS]
    answers = [one.clone() for one in ones]
    for one in answers:
        one[:PROMPT] = 0
    return padded(ones), padded(answers)


def _by_hand(model: torch.nn.Module) -> torch.Tensor:
    """Log probabilities of each token but the first: [rows, longest - 1]."""
    tokens, (attention, _) = padded(rows()), masks()
    logits = model(tokens, attention_mask=attention).logits.log_softmax(-1)
    return logits[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]


def beside(
    directory: str, log_probs: Callable[[], torch.Tensor], step: Callable[[torch.Tensor], object]
) -> None:
    """Print, before each step and at the end, how far both are apart, and how far steps moved.

    :param log_probs: gives the framework's on the last rank, of each token but the first:
        [rows, longest - 1].
    :param step: takes Transformers' from before the step, and trains on all rows at once.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
    answers = masks()[1][:, 1:]
    is_last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
    first = None
    for number in range(STEPS + 1):
        found, theirs = _by_hand(model), log_probs()
        first = found.detach() if first is None else first
        if is_last:
            away, moved = (
                float(((one.detach().cpu().float() - found.detach()).abs() * answers).max())
                for one in (theirs, first)
            )
            print(f"STEP {number} {away:.3e} from Transformers', moved {moved:.3e}", flush=True)
        if number == STEPS:
            return
        step(found.detach())
        optimizer.zero_grad()
        gained = (found - found.detach()).exp() * torch.tensor(ADVANTAGES)[:, None] * answers
        (-gained.sum() / answers.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
