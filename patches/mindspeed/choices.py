"""Values of Megatron's own flags that only MindSpeed and MindSpeed-LLM know."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from accel_bridge.patches.mindspeed.tekken import use_tekken
from accel_bridge.patching.arguments import ArgumentError, flag_of


@dataclass(frozen=True, slots=True)
class Choice:
    """One value.

    :param sets: Megatron's attributes that do the same; None where nothing does.
    :param why: what it is, in words.
    :param then: sets the rest, which depends on the other arguments; returns what it did.
    """

    sets: dict[str, Any] | None
    why: str
    then: Callable[[argparse.Namespace], str] | None = None


#: Attribute of Megatron's arguments -> value of MindSpeed -> what to do.
CHOICES: Final[dict[str, dict[str, Choice]]] = {
    "moe_token_dispatcher_type": {
        "alltoall_seq": Choice(
            {"moe_token_dispatcher_type": "alltoall"},
            "the all-to-all dispatcher over the sequence-parallel split",
        ),
    },
    "moe_router_load_balancing_type": {
        "softmax_topk": Choice(
            {"moe_router_load_balancing_type": "none", "moe_router_pre_softmax": True},
            "softmax over all experts before the choice, without a balancing loss",
        ),
        "pai_megatron_aux_loss": Choice(
            {"moe_router_load_balancing_type": "aux_loss", "moe_router_pre_softmax": True},
            "softmax over all experts before the choice, with the balancing loss of Megatron",
        ),
        "sparsemixer_topk": Choice(None, "SparseMixer, which samples the experts"),
        "group_limited_greedy": Choice(None, "groups chosen by their best expert"),
    },
    "moe_router_score_function": {
        "sqrtsoftplus": Choice(None, "the router's scores of DeepSeek 4"),
    },
    "position_embedding_type": {
        "deepseek4": Choice(None, "the rotary embedding of DeepSeek 4"),
        "alibi": Choice(None, "a linear bias of attention"),
    },
    "tokenizer_type": {
        "PretrainedFromHF": Choice(
            {"tokenizer_type": "HuggingFaceTokenizer"}, "a Hugging Face tokenizer"
        ),
        "MagistralTokenizer": Choice(
            {"tokenizer_type": "TikTokenizer"}, "Mistral's tekken.json", use_tekken
        ),
    },
}


#: Module below mindspeed_llm.tasks.models.spec -> its choice. Megatron builds the same layers by
#: itself from its arguments.
SPECS: Final[dict[str, Choice]] = {
    "qwen3_spec": Choice({}, "attention with norms of query and key"),
    "bailing_spec": Choice({}, "attention with norms of query and key"),
    "deepseek_spec": Choice({"multi_latent_attention": True}, "multi-latent attention"),
    "qwen3_next_spec": Choice({}, "gated attention and gated delta net"),
    "gemma2_spec": Choice(None, "norms after attention and after the feed-forward part"),
    "deepseek4_spec": Choice(None, "the attention and residual streams of DeepSeek 4"),
    "plm_spec": Choice({"multi_latent_attention": True}, "multi-latent attention"),
    "phi35_moe_spec": Choice(None, "a bias of attention's output only"),
    "longcat_spec": Choice(None, "two attention blocks in a layer"),
    "minimax_spec": Choice(None, "the attention of MiniMax"),
}


def _settle_spec(args: argparse.Namespace) -> list[str]:
    """Replace a specification of MindSpeed-LLM, whose package is not needed then."""
    spec = getattr(args, "spec", None)
    if not isinstance(spec, list) or not str(spec[0]).startswith("mindspeed_llm."):
        return []
    name = str(spec[0]).rpartition(".")[2]
    choice = SPECS.get(name, Choice(None, "a specification that is not known here"))
    if choice.sets is None:
        raise ArgumentError(
            f"--spec {' '.join(spec)} is not supported.",
            evidence=f"{choice.why}; Megatron has no such layer",
            next="remove --spec, or install MindSpeed-LLM and let MindSpeed take over "
            "(ACCEL_BRIDGE_MINDSPEED=require)",
        )
    args.spec = None
    for attribute, new in choice.sets.items():
        setattr(args, attribute, new)
    return [f"flag --spec {spec[0]}: {choice.why}, which Megatron builds from its arguments"]


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` accept the values; :func:`settle_choices` handles them."""
    for action in parser._actions:
        known = CHOICES.get(action.dest)
        if known and action.choices is not None:
            # A list of its own: upstream shares some of them.
            action.choices = [*action.choices, *(k for k in known if k not in action.choices)]


def settle_choices(args: argparse.Namespace) -> list[str]:
    """Replace the values; returns a line for each.

    :raises ArgumentError: a value of a feature that Megatron does not have.
    """
    lines = _settle_spec(args)
    for name, known in CHOICES.items():
        value = getattr(args, name, None)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str) or value not in known:
            continue
        flag = f"{flag_of(name)} {value}"
        choice = known[value]
        if choice.sets is None:
            raise ArgumentError(
                f"{flag} is not supported.",
                evidence=f"{choice.why}; Megatron has no such feature",
                next="use one of Megatron's own values: `pretrain_gpt.py --help` lists them",
            )
        for attribute, new in choice.sets.items():
            setattr(args, attribute, new)
        done = ", ".join(f"{attribute} = {new}" for attribute, new in choice.sets.items())
        if choice.then is not None:
            done = choice.then(args)
        lines.append(f"flag {flag}: {done}")
    return lines
