"""MindSpeed-LLM's data handlers (``--handler-name``): which there are, and their flags.

What each makes is what MindSpeed-LLM's ``preprocess_data.py`` makes (master of August 2026), byte
for byte; ``make mindspeed-data`` compares.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from accel_bridge.process.parser import positive

from .errors import UsageError

#: What a row is made of: plain text, one conversation, two answers to a prompt, or the prompt only.
Kind = Literal["text", "instruction", "pairs", "prompts"]


@dataclass(frozen=True)
class Columns:
    """Names of a record's parts; an empty name is a part that there is not.

    :param messages: list of turns; without it a record is an instruction with an answer.
    :param role: key of a turn that says who speaks, one of ``roles``.
    """

    prompt: str = "instruction"
    query: str = "input"
    response: str = "output"
    history: str = ""
    system: str = ""
    tools: str = ""
    chosen: str = "chosen"
    rejected: str = "rejected"
    messages: str = ""
    role: str = "from"
    content: str = "value"
    user: str = "human"
    assistant: str = "gpt"
    observation: str = "observation"
    function: str = "function_call"
    system_role: str = "system"


@dataclass(frozen=True)
class Handler:
    """One handler.

    :param keys: what it writes, a pair of files each.
    :param mappable: which of ``--map-keys`` names it knows.
    """

    name: str
    kind: Kind
    columns: Columns
    keys: tuple[str, ...] = ()
    mappable: tuple[str, ...] = ()
    alternates: bool = True


_ALPACA: Final = Columns()
_SHAREGPT: Final = Columns(messages="conversations")
_OPENAI: Final = Columns(
    messages="messages",
    role="role",
    content="content",
    user="user",
    assistant="assistant",
    observation="tool",
    tools="tools",
)
_ROW: Final = ("input_ids", "attention_mask", "labels")
_PAIR: Final = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")
_OF_ALPACA: Final = ("prompt", "query", "response", "history", "system", "chosen", "rejected")
_OF_SHAREGPT: Final = ("messages", "tags", "system", "tools", "chosen", "rejected")

HANDLERS: Final[Mapping[str, Handler]] = {
    handler.name: handler
    for handler in (
        Handler("GeneralPretrainHandler", "text", Columns()),
        Handler("SharegptPretrainHandler", "text", replace(_SHAREGPT, content="")),
        Handler("AlpacaStyleInstructionHandler", "instruction", _ALPACA, _ROW, _OF_ALPACA),
        Handler("SharegptStyleInstructionHandler", "instruction", _SHAREGPT, _ROW, _OF_SHAREGPT),
        Handler(
            "OpenAIInstructionHandler",
            "instruction",
            _OPENAI,
            _ROW,
            ("messages", "system", "tools"),
            alternates=False,
        ),
        Handler("AlpacaStylePairwiseHandler", "pairs", _ALPACA, _PAIR, _OF_ALPACA),
        Handler("SharegptStylePairwiseHandler", "pairs", _SHAREGPT, _PAIR, _OF_SHAREGPT),
        Handler("PPOAlpacaStyleInstructionHandler", "prompts", _ALPACA, _ROW[:2], _OF_ALPACA),
    )
}

#: Handlers of MindSpeed-LLM that are not here, and what to use in their place.
_INSTEAD: Final[Mapping[str, str]] = {
    "LlamaFactoryInstructionHandler": "AlpacaStyleInstructionHandler or "
    "SharegptStyleInstructionHandler, with --map-keys for what dataset_info.json says",
    "AlpacaPretrainHandler": "AlpacaStyleInstructionHandler with --prompt-type alpaca",
    "GeneralInstructionHandler": "AlpacaStyleInstructionHandler with --prompt-type alpaca",
}

#: MindSpeed-LLM's names of a turn's keys in ``--map-keys '{"tags": {...}}'``.
_TAGS: Final[Mapping[str, str]] = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "observation",
    "function_tag": "function",
    "system_tag": "system_role",
}


@dataclass(frozen=True)
class HandlerArguments:
    """What was asked of a handler.

    :param template: name of the prompt template.
    :param template_file: where it is looked for besides the built-in ones.
    :param thinking: the reasoning of models that think: None and False keep it empty.
    :param seq_length: rows that reach it are left out; None keeps all.
    """

    handler: Handler
    columns: Columns
    template: str | None = None
    template_file: str | None = None
    thinking: bool | None = None
    seq_length: int | None = None
    pack: bool = False
    neat_pack: bool = False

    @property
    def is_text(self) -> bool:
        """Whether rows are plain text, without turns."""
        return self.handler.kind == "text"

    def parts(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """The parts of a record that are read.

        :param keys: those of ``--json-keys``, which plain text is read from.
        """
        columns = self.columns
        if self.is_text:
            return keys
        opening = (columns.messages,) if columns.messages else (columns.prompt, columns.query)
        answers: tuple[str, ...] = () if columns.messages else (columns.response,)
        if self.handler.kind == "pairs":
            answers = (columns.chosen, columns.rejected)
        history = "" if columns.messages else columns.history
        named = (*opening, *answers, history, columns.system, columns.tools)
        return tuple(dict.fromkeys(name for name in named if name))

    def identity(self) -> list[object]:
        """Everything that the bytes depend on."""
        return [
            self.handler.name,
            vars(self.columns),
            self.template,
            None if self.template_file is None else _digest(self.template_file),
            self.thinking,
            self.seq_length,
            self.pack,
            self.neat_pack,
        ]


def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def add_handler(group: argparse._ArgumentGroup) -> None:
    """MindSpeed-LLM's flags."""
    group.add_argument(
        "--handler-name",
        metavar="NAME",
        help=f"make what MindSpeed-LLM's handler makes: {', '.join(HANDLERS)}",
    )
    group.add_argument("--prompt-type", metavar="NAME", help="prompt template of a conversation")
    group.add_argument(
        "--prompt-type-path", metavar="FILE", help="JSON file with further prompt templates"
    )
    group.add_argument(
        "--enable-thinking",
        choices=("true", "false", "none"),
        type=str.lower,
        default="none",
        help="whether answers keep their reasoning (templates of models that think)",
    )
    group.add_argument(
        "--seq-length", type=positive, help="length of the rows that training reads; longer ones go"
    )
    group.add_argument("--pack", action="store_true", help="put several conversations into one row")
    group.add_argument(
        "--neat-pack", action="store_true", help="number packed conversations in the mask"
    )
    group.add_argument("--map-keys", metavar="JSON", help="names of a record's parts")


def handler_arguments(parsed: argparse.Namespace) -> HandlerArguments | None:
    """What the flags say; None without ``--handler-name``.

    :raises UsageError: an unknown handler, or flags that do not go together.
    """
    if parsed.handler_name is None:
        _refuse_flags_without_handler(parsed)
        return None
    handler = HANDLERS.get(parsed.handler_name)
    if handler is None:
        raise UsageError(
            f"--handler-name {parsed.handler_name} is not known here",
            evidence=f"known: {', '.join(HANDLERS)}",
            next=f"use {_INSTEAD.get(parsed.handler_name, 'one of these')}",
        )
    is_text = handler.kind == "text"
    if is_text and (parsed.prompt_type or parsed.pack):
        raise UsageError(
            f"{handler.name} makes rows of plain text, without a template and not packed",
            evidence="--prompt-type " + parsed.prompt_type if parsed.prompt_type else "--pack",
            next="leave it out, or name the handler of a conversation",
        )
    if not is_text and parsed.prompt_type is None:
        raise UsageError(
            f"{handler.name} needs a prompt template",
            evidence="--prompt-type was not given",
            next="add --prompt-type with the model's, such as qwen3 or llama3",
        )
    if parsed.tokenizer_type != "HuggingFaceTokenizer" and not is_text:
        raise UsageError(
            "prompt templates need a Hugging Face tokenizer",
            evidence=f"--tokenizer-type {parsed.tokenizer_type}",
            next="use --tokenizer-type PretrainedFromHF --tokenizer-name-or-path DIRECTORY",
        )
    _check_packing(parsed, handler)
    return HandlerArguments(
        handler,
        _columns(handler, parsed.map_keys),
        parsed.prompt_type,
        parsed.prompt_type_path,
        {"true": True, "false": False, "none": None}[parsed.enable_thinking],
        parsed.seq_length,
        parsed.pack,
        parsed.neat_pack,
    )


def _refuse_flags_without_handler(parsed: argparse.Namespace) -> None:
    flags = ("prompt_type", "seq_length", "pack", "neat_pack", "map_keys")
    given = [flag for flag in flags if getattr(parsed, flag)]
    if given:
        name = "--" + given[0].replace("_", "-")
        raise UsageError(
            f"{name} is for a data handler",
            evidence=f"{name} without --handler-name",
            next=f"add --handler-name, or leave {name} out",
        )


def _check_packing(parsed: argparse.Namespace, handler: Handler) -> None:
    if parsed.neat_pack and not parsed.pack:
        raise UsageError(
            "--neat-pack refines --pack", evidence="--pack was not given", next="add --pack"
        )
    if parsed.pack and (handler.kind != "instruction" or not parsed.seq_length):
        raise UsageError(
            "--pack fills rows of a length with conversations",
            evidence=f"{handler.name}, --seq-length {parsed.seq_length}",
            next="add --seq-length, with a handler of conversations",
        )


def _columns(handler: Handler, text: str | None) -> Columns:
    """The handler's columns with those of ``--map-keys``."""
    if text is None:
        return handler.columns
    try:
        mapping: Any = json.loads(text)
        names = {key: value for key, value in mapping.items() if key != "tags"}
        tags = {_TAGS[tag]: name for tag, name in (mapping.get("tags") or {}).items()}
        unknown = [key for key in mapping if key not in handler.mappable]
    except (ValueError, AttributeError, KeyError) as error:
        raise UsageError(
            "--map-keys is no object of names",
            evidence=f"{text}: {type(error).__name__}: {error}",
            next='write it as --map-keys \'{"prompt": "question", "response": "answer"}\'',
        ) from error
    if unknown:
        raise UsageError(
            f"{handler.name} has no part {unknown[0]!r}",
            evidence=f"--map-keys {text}",
            next=f"map {', '.join(handler.mappable) or 'nothing'}",
        )
    if tags:
        # A tag that is not named is none, as there.
        tags = {**dict.fromkeys(_TAGS.values(), ""), **tags}
    return replace(
        handler.columns, **{key: str(value or "") for key, value in names.items()}, **tags
    )
