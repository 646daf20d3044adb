"""How a training script of MindSpeed-LLM is made small enough for one or two CPU ranks.

The script itself is not edited: a `torchrun` of ours, first on PATH, takes its command line and
changes it. What chooses a computation stays; this changes:

- **widths**: each has a fixed small size (:data:`WIDTHS`), and never grows; the vocabulary fits the
  tokenizer that is made for the run;
- **layers**: two, or as many as one of each kind needs; empty layers and layer lists go;
- **processes**: every parallel size becomes 1, with two ranks tensor parallelism stays 2;
- **batches and length**: micro-batches of 1, global batches of 4, four iterations, of which a
  script that resumes trains three; all data are for training;
- **learning rate**: 1e-3 without warm-up: at a real model's rate three steps change no digit;
- **precision**: float32, as the losses are compared to 1e-5, so what needs bf16 goes;
- **paths**: whatever the script's placeholders say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Flags = list[tuple[str, list[str]]]

#: The checkpoint to start from is of the first one, so a script that resumes trains three.
ITERATIONS: Final = 4
VOCABULARY: Final = 640

#: Flag -> its largest value.
WIDTHS: Final[Mapping[str, int]] = {
    "--hidden-size": 64,
    "--ffn-hidden-size": 128,
    "--num-attention-heads": 4,
    "--num-query-groups": 2,
    "--kv-channels": 16,
    "--moe-ffn-hidden-size": 32,
    "--moe-intermediate-size": 32,
    "--moe-shared-expert-intermediate-size": 32,
    "--num-experts": 4,
    "--moe-router-topk": 2,
    "--moe-router-num-groups": 2,
    "--moe-router-group-topk": 2,
    "--n-group": 2,
    "--topk-group": 2,
    "--q-lora-rank": 32,
    "--kv-lora-rank": 16,
    "--qk-head-dim": 16,
    "--qk-nope-head-dim": 16,
    "--qk-pos-emb-head-dim": 8,
    "--qk-rope-head-dim": 8,
    "--v-head-dim": 16,
    "--linear-key-head-dim": 16,
    "--linear-value-head-dim": 16,
    "--linear-num-key-heads": 2,
    "--linear-num-value-heads": 4,
    "--index-n-heads": 2,
    "--index-head-dim": 16,
    "--index-topk": 16,
    "--seq-length": 64,
    "--max-position-embeddings": 64,
    "--rope-scaling-original-max-position-embeddings": 32,
    "--recompute-num-layers": 1,
    "--first-k-dense-replace": 1,
    "--lora-r": 4,
    "--micro-batch-size": 1,
    "--global-batch-size": 4,
    "--eval-iters": 0,
    "--num-workers": 0,
}
#: Flag -> what it becomes.
FIXED: Final[Mapping[str, str]] = {
    "--padded-vocab-size": str(VOCABULARY),
    "--vocab-size": str(VOCABULARY),
    "--train-iters": str(ITERATIONS),
    "--split": "100,0,0",
    "--lr": "1e-3",
    "--min-lr": "1e-4",
    "--lr-decay-iters": str(ITERATIONS),
    "--lr-warmup-iters": "0",
    "--lr-warmup-fraction": "0",
    "--context-parallel-size": "1",
    "--pipeline-model-parallel-size": "1",
    "--expert-model-parallel-size": "1",
    "--expert-tensor-parallel-size": "1",
}
#: The error that is injected: another small number in every norm.
INJECTED: Final = ("--norm-epsilon", "1e-2")
#: What is left out: layers of pipeline stages, and what needs bf16.
DROPPED: Final = frozenset(
    """--num-layers-per-virtual-pipeline-stage --noop-layers --num-layer-list --schedules-method
    --bf16 --fp16 --initial-loss-scale --o2-optimizer --o2-gradient --reuse-fp32-param
    --tensorboard-dir --hf-cfg-dir""".split()
)
#: What reads or starts from something that is not there yet.
_LATER: Final = ("--load", "--lora-load", "--finetune")


def flags_of(words: Sequence[str]) -> Flags:
    """A command line as flags with their values; of a flag given twice the last counts."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found.pop(flag, None)
            found[flag] = [value] if equals else []
        elif flag:
            found[flag].append(word)
    return list(found.items())


def small(
    words: Sequence[str],
    paths: Mapping[str, str],
    ranks: int = 1,
    start: str = "",
    wrong: bool = False,
) -> list[str]:
    """The small command line.

    :param paths: flag -> the path that it gets.
    :param start: directory of the checkpoint to start from, which a step that changes nothing then
        writes. It has the adapters too: they start from random numbers, which are another device's
        otherwise.
    :param wrong: with an error that every comparison must find.
    """
    found = dict(flags_of(words))
    every = found.get("--full-attention-interval", ["2"])[0]
    for flag in list(found):
        if flag in DROPPED or (start and flag in _LATER):
            del found[flag]
        elif flag in paths:
            found[flag] = [paths[flag]]
        elif flag in FIXED:
            found[flag] = [FIXED[flag]]
        elif flag in WIDTHS and found[flag][0].isdigit():
            found[flag] = [str(min(int(found[flag][0]), WIDTHS[flag]))]
    found["--num-layers"] = [str(max(2, int(every)))]
    found["--tensor-model-parallel-size"] = [str(ranks)]
    if start:
        first = {"--train-iters": "1", "--lr": "0", "--min-lr": "0", "--save-interval": "1"}
        found |= {flag: [value] for flag, value in {**first, "--save": start}.items()}
    if wrong:
        flag, value = INJECTED
        found[flag] = [value]
    return [word for flag, values in found.items() for word in (flag, *values)]
