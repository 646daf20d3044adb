"""Hybrid models for `mixtures.py`: their patterns, and what their layers and pipelines may be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from recipe_data import write_indexed

#: Of the names that every Megatron knows.
SPEC: Final = "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
OLD: Final = (
    f"--is-hybrid-model --mamba-state-dim 16 --mamba-head-dim 4 --mamba-num-groups 2 {SPEC}"
)
OLD_PATTERNS: Final = ("M*M-", "M-*-", "MM*-", "M-M*", "MMMM")
OLD_PATTERNS_OF_EXPERTS: Final = ("M*ME", "ME*E", "M*-E", "MEME")

#: What a newer Megatron's layers may be: `+` is latent attention, `/` is before predicted tokens,
#: whose layers with experts are no later than there are depths: Megatron counts no further.
PATTERNS: Final = (
    *("M*M-", "MMMM", "M-*-", "MM*-M-", "MG*-", "GG*G", "G-M*", "M*M-/*M", "MM*-/*-/*-", "MG*-/G"),
)
PATTERNS_OF_EXPERTS: Final = (
    *("M*ME", "ME*E", "M*-E", "MEME*E", "MG*E", "GE*E", "M-GE", "ME*E/E", "GEME/*E/*E"),
)
LATENT: Final = ("M+M-", "MG+-", "+-+-", "M+M-/+-")
LATENT_OF_EXPERTS: Final = ("M+ME", "GE+E", "ME+E/+E/+E")

#: A state-space layer by another rule, of Megatron's main.
PRODUCT: Final = (
    "--gdp-num-householder 2 --spec megatron.core.models.hybrid.hybrid_layer_specs gdp_stack_spec"
)
#: Only the first's projection has as many rows as FP8 wants; the last's group is all ranks' own.
STATE_SPACES: Final = (
    "--mamba-state-dim 16 --mamba-head-dim 4 --mamba-num-groups 2",
    "--mamba-num-heads 4 --mamba-head-dim 32 --mamba-state-dim 16 --mamba-num-groups 4",
    "--mamba-num-heads 12 --mamba-head-dim 8 --mamba-state-dim 24 --mamba-num-groups 2",
    "--mamba-num-heads 8 --mamba-head-dim 8 --mamba-state-dim 32 --mamba-num-groups 1",
)
#: The first is FP8's here, too.
DELTA_RULES: Final = tuple(
    f"{text} --swiglu"
    for text in (
        "--linear-key-head-dim 16 --linear-value-head-dim 16 --linear-num-key-heads 16 "
        "--linear-num-value-heads 16",
        "--linear-key-head-dim 16 --linear-value-head-dim 16 --linear-num-key-heads 4 "
        "--linear-num-value-heads 4",
        "--linear-key-head-dim 8 --linear-value-head-dim 32 --linear-num-key-heads 4 "
        "--linear-num-value-heads 8 --linear-conv-kernel-dim 2",
    )
)
#: The second is of several chunks of a scan.
LENGTHS: Final = ("", "", "--seq-length 320 --max-position-embeddings 320")
#: Short documents, which neither a state nor attention may leave.
DOCUMENTS: Final = "--data-path documents --split 1,0,0 --dataloader-inter-document-masking"
NEUTRAL: Final = (
    *("--disable-mamba-mem-eff-path", "--recompute-granularity selective --recompute-modules moe"),
    "--mamba-training-ssm-states-dtype fp32",
)


def words_of(
    source: random.Random, can: Callable[[str], bool], routed: bool, latent: bool
) -> list[str]:
    """Of a model: the very last word is its pattern.

    :param can: whether this Megatron knows the flags of a text.
    """
    if not can("--hybrid-layer-pattern"):
        pattern = source.choice(OLD_PATTERNS_OF_EXPERTS if routed else OLD_PATTERNS)
        return [OLD, f"--hybrid-override-pattern {pattern}"]
    tables = (LATENT_OF_EXPERTS, LATENT) if latent else (PATTERNS_OF_EXPERTS, PATTERNS)
    pattern = source.choice(tables[not routed])
    words = [source.choice(STATE_SPACES), source.choice(LENGTHS)]
    if "G" in pattern:
        words.append(source.choice(DELTA_RULES))
    if "/" in pattern:
        words.append(f"--mtp-num-layers {pattern.count('/')}")
    elif can(DOCUMENTS) and source.random() < 0.3:
        words.append(DOCUMENTS)
    product = not latent and can(PRODUCT) and source.random() < 0.2
    spec = PRODUCT if product else SPEC
    return [*filter(None, words), f"{spec} --hybrid-layer-pattern {pattern}"]


def for_fp8(what: Sequence[str]) -> list[str]:
    """A model whose projections have as many rows as FP8 wants."""
    wanted = {text: texts[0] for texts in (STATE_SPACES, DELTA_RULES) for text in texts}
    return [wanted.get(text, text) for text in what]


def stages(source: random.Random, pattern: str, flags: str) -> str:
    """What divides a pattern for the pipeline of a layout; nothing where it has none."""
    if "pipeline" not in flags:
        return ""
    main, *predicted = pattern.split("/")
    parts = source.choice((2, 4))
    cuts = [0, *sorted(source.sample(range(1, len(main)), parts - 1)), len(main)]
    divided = "|".join(main[start:end] for start, end in itertools.pairwise(cuts))
    return f" --hybrid-layer-pattern {'/'.join((divided, *predicted))}"


def write_documents(prefix: Path) -> None:
    """Documents of a few tokens, in fours: a context-parallel rank has parts of each."""
    source = random.Random(0)
    lengths = (4 * source.randint(1, 30) for _ in range(2000))
    write_indexed(prefix, ([[source.randrange(8190) for _ in range(one)]] for one in lengths))
