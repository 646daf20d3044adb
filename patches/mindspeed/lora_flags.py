"""MindSpeed-LLM's flags for low-rank adapters (LoRA) in Megatron's arguments."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from accel_bridge.patches.checkpoints import TRACKER
from accel_bridge.patches.mindspeed.mapped_flags import Translation, translates
from accel_bridge.patching.host import ArgumentError

Namespace = argparse.Namespace

#: Attribute of Megatron's arguments that holds the :class:`Lora`, as a plain dict: checkpoints keep
#: the arguments, and are read where this class is not known.
ASKED: Final = "accel_bridge_lora"


@dataclass(frozen=True, slots=True)
class Lora:
    """What was asked for; the defaults are MindSpeed-LLM's.

    :param rank: columns of the first factor, rows of the second.
    :param alpha: the adapters' output is scaled by ``alpha / rank``.
    :param targets: the last part of the names of the linear layers that get an adapter. Without
        one there are no adapters.
    :param load: a checkpoint with the adapters, loaded after ``--load``.
    :param only_adapters: checkpoints hold the adapters without the model that they belong to.
    """

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ()
    load: str | None = None
    only_adapters: bool = False


def asked(args: Namespace) -> Lora | None:
    """The adapters of a run, if it has some."""
    lora = _read(args)
    return lora if lora.targets else None


def _read(args: Namespace) -> Lora:
    return Lora(**(getattr(args, ASKED, None) or {}))


def _update(args: Namespace, **changes: Any) -> Lora:
    lora = replace(_read(args), **changes)
    setattr(args, ASKED, asdict(lora))
    return lora


def _number(name: str) -> Translation:
    def number(args: Namespace, words: list[str]) -> str:
        if not words[0].isdecimal() or int(words[0]) < 1:
            raise ArgumentError(
                f"--lora-{'r' if name == 'rank' else name} takes a number above 0.",
                evidence=f"it is {words[0]}",
                next="--lora-r 16 --lora-alpha 32",
            )
        _update(args, **{name: int(words[0])})
        return f"the adapters' {name} is {words[0]}"

    return number


translates("--lora-r", "low-rank adapters: the adapters' rank (16)", values=1)(_number("rank"))
translates(
    "--lora-alpha",
    "low-rank adapters: their scale, alpha / rank (32)",
    values=1,
)(_number("alpha"))


@translates(
    "--lora-load",
    "low-rank adapters: adapters loaded after the model of `--load`",
    values=1,
)
def load(args: Namespace, words: list[str]) -> str:
    """``--lora-load DIR``: adapters that were trained before.

    :raises ArgumentError: there is no checkpoint.
    """
    if not (Path(words[0]) / TRACKER).is_file():
        raise ArgumentError(
            "--lora-load names no checkpoint.",
            evidence=f"{words[0]} has no {TRACKER}",
            next="give the directory that --save named, or remove --lora-load",
        )
    _update(args, load=words[0])
    args.lora_load = words[0]
    return f"adapters are loaded from {words[0]}"


@translates("--lora-ckpt-filter", "low-rank adapters: checkpoints that hold the adapters alone")
def only_adapters(args: Namespace, words: list[str]) -> str:
    """``--lora-ckpt-filter``: checkpoints without the frozen model."""
    _update(args, only_adapters=True)
    return "checkpoints hold the adapters alone"


@translates(
    "--lora-target-modules",
    "low-rank adapters: adapters on the linear layers of these names; nothing else is trained",
    values="+",
)
def targets(args: Namespace, words: list[str]) -> str:
    """``--lora-target-modules NAME...``: only the adapters of these linear layers are trained.

    They are put on Megatron's own linear layers, so the model is built from the local
    specification, as MindSpeed-LLM builds it.
    """
    lora = _update(args, targets=tuple(words))
    done = [f"adapters of rank {lora.rank} on {', '.join(words)}; nothing else is trained"]
    if getattr(args, "transformer_impl", "local") != "local":
        args.transformer_impl = "local"
        done.append("transformer_impl = local")
    if getattr(args, "num_experts", None):
        # An adapter for each expert: the experts are linear layers then.
        args.moe_grouped_gemm = False
        args.expert_tensor_parallel_size = 1
        done.append("moe_grouped_gemm = False, expert_tensor_parallel_size = 1")
    return ", ".join(done)
