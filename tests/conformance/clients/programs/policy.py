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


class ByHand:
    """Transformers' own policy, and AdamW on it."""

    def __init__(self, directory: str, rounded: bool = False) -> None:
        """With ``rounded``, weights are bfloat16 with float32 masters; arithmetic is float32."""
        dtype = torch.bfloat16 if rounded else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).float().eval()
        # Megatron trains the embedding of the padding's token too, which a policy may answer.
        self.model.get_input_embeddings().padding_idx = None
        self.masters = [one.detach().clone() for one in self.model.parameters()]
        self.dtype = dtype
        self.optimizer = torch.optim.AdamW(self.masters, lr=RATE, betas=BETAS, weight_decay=0.0)

    def log_probs(self, tokens: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        """Of each token but the first: [rows, longest - 1]."""
        logits = self.model(tokens, attention_mask=attention).logits.log_softmax(-1)
        return logits[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]

    def step(self, found: torch.Tensor, earned: torch.Tensor, answers: torch.Tensor) -> float:
        """The loss on log probabilities before the step.

        :param earned: the advantage of each row or token.
        """
        self.model.zero_grad()
        gained = (found - found.detach()).exp() * earned * answers
        loss = -gained.sum() / answers.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for master, one in zip(self.masters, self.model.parameters(), strict=True):
            master.grad = one.grad
        self.optimizer.step()
        with torch.no_grad():
            for master, one in zip(self.masters, self.model.parameters(), strict=True):
                one.copy_(master.to(self.dtype))
        return float(loss.detach())


def apart(one: torch.Tensor, other: torch.Tensor, answers: torch.Tensor) -> float:
    """The largest distance of log probabilities of answers."""
    return float(((one.detach().cpu().float() - other.detach()).abs() * answers).max())


def beside(
    directory: str, log_probs: Callable[[], torch.Tensor], step: Callable[[torch.Tensor], object]
) -> None:
    """Print, before each step and at the end, how far both are apart, and how far steps moved.

    :param log_probs: gives the framework's on the last rank, of each token but the first:
        [rows, longest - 1].
    :param step: takes Transformers' from before the step, and trains on all rows at once.
    """
    by_hand, (attention, answers) = ByHand(directory), masks()
    answers = answers[:, 1:]
    is_last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
    first = None
    for number in range(STEPS + 1):
        found, theirs = by_hand.log_probs(padded(rows()), attention), log_probs()
        first = found.detach() if first is None else first
        if is_last:
            away, moved = (apart(one, found, answers) for one in (theirs, first))
            print(f"STEP {number} {away:.3e} from Transformers', moved {moved:.3e}", flush=True)
        if number == STEPS:
            return
        step(found.detach())
        by_hand.step(found, torch.tensor(ADVANTAGES)[:, None], answers)
