"""Values of Megatron's own flags that only MindSpeed and MindSpeed-LLM know;
among them Mistral's tekken.json as a vocabulary.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accel_bridge.patching.host import ArgumentError, flag_of
from accel_bridge.process.cache import cache_directory

#: How Megatron calls the special tokens of earlier releases, and of this one.
_SPECIAL: Final = ("special_tokens", "tokenizer_special_tokens", "tiktoken_special_tokens")
#: Tokens that Megatron's tokenizer must have; those that Mistral lacks take unused places.
_NEEDED: Final = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
#: Megatron's pattern v2 of words, which is Mistral's.
_PATTERN_V2: Final = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
#: Attribute of the parsed arguments: what this Megatron's own parser takes of :data:`CHOICES`.
_OWN: Final = "_accel_bridge_own_choices"


@dataclass(frozen=True, slots=True)
class Tekken:
    """A tekken.json.

    :param pairs: its byte pairs, as Megatron reads them: rank, token_bytes, token_str.
    :param special: every special token in the order of their ids, which come first.
    """

    pairs: list[dict[str, Any]]
    special: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.special) + len(self.pairs)


def read_tekken(file: Path) -> Tekken:
    """Read Mistral's file.

    :raises ArgumentError: it is no such file, or splits words in another way than Megatron can.
    """
    try:
        document = json.loads(file.read_bytes())
        config = document["config"]
        pattern = str(config["pattern"])
        count = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"])
        pairs = document["vocab"][: size - count]
        names = {int(one["rank"]): str(one["token_str"]) for one in document["special_tokens"]}
        ranks_are_sound = [one["rank"] for one in pairs] == list(range(len(pairs)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            "--tokenizer-model is not Mistral's tekken.json.",
            evidence=f"{file}: {type(error).__name__}: {error}",
            next="give the tekken.json of the model, from its Hugging Face directory",
        ) from error
    special = _fill(names, count)
    if not (pattern == _PATTERN_V2 and ranks_are_sound and set(_NEEDED) <= set(special)):
        raise ArgumentError(
            "This tekken.json cannot become a vocabulary of Megatron's TikTokenizer.",
            evidence=f"{file}: pattern {pattern[:60]}..., ranks in order: {ranks_are_sound}, "
            f"room for {count} special tokens, {len(names)} are named",
            next="use the model's Hugging Face tokenizer: --tokenizer-type HuggingFaceTokenizer",
        )
    return Tekken(pairs, special)


def _fill(names: dict[int, str], count: int) -> tuple[str, ...]:
    """Names for all ``count`` places; the last free ones get what Megatron needs besides."""
    special = [names.get(i, f"<SPECIAL_{i}>") for i in range(count)]
    free = [i for i in range(count) if special[i] == f"<SPECIAL_{i}>"]
    for token in _NEEDED:
        if token not in special and free:
            special[free.pop()] = token
    return tuple(special)


def use_tekken(args: argparse.Namespace) -> str:
    """Point Megatron's arguments at the vocabulary in ``--tokenizer-model``.

    A path that does not exist is left to the check of paths, which names it.
    """
    file = Path(args.tokenizer_model or "")
    if file.is_dir():
        file = file / "tekken.json"
    if not file.is_file():
        return f"tokenizer_type = TikTokenizer; {file} is not there yet"
    tekken = read_tekken(file)
    for name in _SPECIAL:
        if hasattr(args, name):
            setattr(args, name, list(tekken.special))
    args.tiktoken_num_special_tokens = len(tekken.special)
    args.tiktoken_pattern = "v2"
    args.vocab_size = tekken.vocab_size
    args.tokenizer_model = str(_cached(tekken))
    return (
        f"tokenizer_type = TikTokenizer with the {tekken.vocab_size} tokens of {file}, "
        f"as {args.tokenizer_model}"
    )


def _cached(tekken: Tekken) -> Path:
    """The byte pairs as a file of their own; every rank may write it at the same time."""
    data = json.dumps(tekken.pairs, separators=(",", ":")).encode()
    directory = cache_directory("tokenizers")
    path = directory / f"tekken-{hashlib.sha256(data).hexdigest()[:16]}.json"
    if not path.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as partial:
            partial.write(data)
        os.replace(partial.name, path)
    return path


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
    """Let ``parser`` accept the values; :func:`settle_choices` handles them.

    It refuses none that ``parser`` takes by itself.
    """
    own = []
    for action in parser._actions:
        known = CHOICES.get(action.dest)
        if known and action.choices is not None:
            own += [(action.dest, value) for value in known if value in action.choices]
            # A list of its own: upstream shares some of them.
            action.choices = [*action.choices, *(k for k in known if k not in action.choices)]
    if own:
        parser.set_defaults(**{_OWN: own})


def settle_choices(args: argparse.Namespace) -> list[str]:
    """Replace the values; returns a line for each.

    :raises ArgumentError: a value of a feature that Megatron does not have.
    """
    lines = _settle_spec(args)
    own = vars(args).pop(_OWN, ())
    for name, known in CHOICES.items():
        value = getattr(args, name, None)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str) or value not in known:
            continue
        flag = f"{flag_of(name)} {value}"
        choice = known[value]
        if choice.sets is None and (name, value) in own:
            continue
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
