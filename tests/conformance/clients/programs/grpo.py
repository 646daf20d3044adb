"""GRPO by hand, with Transformers.

    python grpo.py write MODEL ROLLOUTS.pt
    python grpo.py compare MODEL ROLLOUTS.pt DUMP STEPS

`write` makes two answers to each of two prompts in the form of slime's debug rollouts. `compare`
takes STEPS steps of AdamW on them, weights in bfloat16 with float32 masters as Megatron's, and
prints how far the log probabilities before each are from those that slime wrote to DUMP, in which
`{rollout_id}` stands for the step.
"""

from __future__ import annotations

import sys

import policy
import torch

PROMPT, ANSWER = 12, 20


def rollouts(directory: str) -> list[dict[str, object]]:
    """Random tokens; the second answer of the first prompt and the first of the second earn 1."""
    torch.manual_seed(5)
    prompts = torch.randint(3, 300, (2, PROMPT)).repeat_interleave(2, 0)
    tokens = torch.cat([prompts, torch.randint(3, 300, (4, ANSWER))], 1)
    with torch.no_grad():
        found = log_probs(policy.ByHand(directory, rounded=True), tokens)
    return [
        {
            "index": index,
            "group_index": index // 2,
            "prompt": "p",
            "tokens": tokens[index].tolist(),
            "rollout_log_probs": found[index].tolist(),
            "response": "a",
            "response_length": ANSWER,
            "reward": reward,
            "status": "completed",
        }
        for index, reward in enumerate((0.0, 1.0, 1.0, 0.0))
    ]


def log_probs(by_hand: policy.ByHand, tokens: torch.Tensor) -> torch.Tensor:
    """Of the answers, in float32: [samples, ANSWER]."""
    return by_hand.log_probs(tokens, torch.ones_like(tokens))[:, PROMPT - 1 :]


def compare(directory: str, data: str, dump: str, steps: int) -> None:
    """Print the distances, and how far a step moved."""
    samples = torch.load(data)["samples"]
    tokens = torch.tensor([one["tokens"] for one in samples])
    rewards = torch.tensor([one["reward"] for one in samples]).view(-1, 2)
    advantages = (rewards - rewards.mean(-1, True)) / (rewards.std(-1, keepdim=True) + 1e-6)
    by_hand, first = policy.ByHand(directory, rounded=True), None
    for step in range(steps):
        found = log_probs(by_hand, tokens)
        first = found.detach() if first is None else first
        saved = torch.load(dump.format(rollout_id=step), weights_only=False)
        rows = sorted(saved["samples"], key=lambda row: row["rollout_position"])
        theirs = torch.stack([row["log_probs"].float() for row in rows])
        away, moved = (float((one - found.detach()).abs().mean()) for one in (theirs, first))
        print(f"STEP {step} {away:.3e} from Transformers', moved {moved:.3e}")
        by_hand.step(found, advantages.view(-1, 1), torch.ones_like(found))


if sys.argv[1] == "write":
    torch.save({"samples": rollouts(sys.argv[2])}, sys.argv[3])
else:
    compare(*sys.argv[2:5], int(sys.argv[5]))
