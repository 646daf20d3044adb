"""Prompt templates: a conversation's turns as text and single tokens, and how rows are cut.

The meaning of each step, rounding included, is that of MindSpeed-LLM's ``templates.py``, whose rows
must come out byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from accel_bridge.pretrain.preprocess.truncation import shares

from ._conversations import Conversation, Message, RecordError
from .errors import UsageError

# Tools and their calls as text, where a template has no form of its own for them.
#
# The text is the one that LLaMA-Factory and MindSpeed-LLM train models with, so it is data here.

_EXAMPLE = '{"input": "hello world", "num_beams": 5}'
_OPENING = "You have access to the following tools:\n"
_USE = (
    "Use the following format if using a tool:\n```\nAction: tool name (one of [{names}]).\n"
    "Action Input: the input to the tool, in a JSON format representing the kwargs "
    f"(e.g. ```{_EXAMPLE}```).\n```\n"
)
_THOUGHT = re.compile(r"<think>(.*)</think>", re.DOTALL)


def tools_text(tools: str) -> str:
    """What a system prompt says about tools, given as a JSON list; "" for what is none."""
    try:
        listed = json.loads(tools)
        if not listed:
            return ""
        text = "".join(_tool(tool) for tool in listed)
        names = ", ".join(tool["name"] for tool in listed)
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""
    return _OPENING + text + _USE.replace("{names}", names)


def _tool(tool: dict[str, Any]) -> str:
    parameters = tool["parameters"]
    required = parameters.get("required", [])
    lines = ""
    for name, one in parameters["properties"].items():
        needed = ", required" if name in required else ""
        choices = f", should be one of [{', '.join(one['enum'])}]" if one.get("enum") else ""
        items = one.get("items")
        each = f", where each item should be {items.get('type', '')}" if items else ""
        kind, about = one.get("type", ""), one.get("description", "")
        lines += f"  - {name} ({kind}{needed}): {about}{choices}{each}\n"
    about = tool.get("description", "")
    return f"> Tool Name: {tool['name']}\nTool Description: {about}\nTool Args:\n{lines}\n"


def call_text(content: str) -> tuple[str, str]:
    """Name and arguments of a call, empty for what is none."""
    try:
        call = json.loads(content)
        return call["name"], json.dumps(call["arguments"], ensure_ascii=False)
    except (ValueError, TypeError, KeyError):
        return "", ""


def calls_text(content: str) -> str:
    """One or several calls, each between tags, with the reasoning before them.

    :raises RecordError: they are no JSON.
    """
    thought = _THOUGHT.search(content)
    if thought:
        content = content.replace(thought.group(0), "")
    try:
        calls = json.loads(content)
        texts = [
            json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
            for call in (calls if isinstance(calls, list) else [calls])
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"a tool call that is no JSON: {content[:60]}") from error
    text = "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in texts)
    return thought.group(0) + text if thought else text


#: The templates of models. What a model's chat format is, as its own tokenizer_config.json or model
#: card says; names, defaults and form are those of MindSpeed-LLM's templates.json.
_OWN: Final = str(Path(__file__).with_name("templates.json"))
#: Roles of a tokenizer's tokens that a slot may name.
_ROLES: Final = ("bos_token", "eos_token")
_CLASSES: Final = ("Template", "Llama2Template", "ReasoningTemplate", "LFDefaultTemplate")
#: Templates whose tool calls are lists, with the reasoning before them.
_CALL_LISTS: Final = ("qwen3", "bailing_mini")


class Token(NamedTuple):
    """One token: by its text, or by its role in the tokenizer."""

    text: str


Piece = str | Token
#: A slot as it is written.
Slot = str | Token


@dataclass(frozen=True)
class PromptTemplate:
    """How turns look.

    :param formats: name of a part -> its slots.
    :param kind: how the parts are put together, by MindSpeed-LLM's class names.
    :param efficient_eos: turns end with the next one's beginning; one end token closes the row.
    """

    name: str
    formats: Mapping[str, tuple[Slot, ...]]
    kind: str
    default_system: str
    stop_words: tuple[str, ...]
    thought_words: tuple[str, str]
    efficient_eos: bool
    replace_eos: bool

    @property
    def tokens(self) -> tuple[str, ...]:
        """Texts of the single tokens that its slots name."""
        slots = [slot for slots in self.formats.values() for slot in slots]
        found = {slot.text for slot in slots if isinstance(slot, Token)}
        return tuple(sorted(found - set(_ROLES)))

    def render(self, talk: Conversation, messages: Sequence[Message]) -> list[list[Piece]]:
        """The pieces of every turn.

        :raises RecordError: a turn that has no form, or tools that this template cannot name.
        """
        return [self._turn(talk, messages, index) for index in range(len(messages))]

    def _turn(self, talk: Conversation, messages: Sequence[Message], index: int) -> list[Piece]:
        message = messages[index]
        pieces: list[Piece] = []
        content = message.content
        if index == 0:
            pieces += self.formats["prefix"]
            system = talk.system or self.default_system
            if system or talk.tools:
                text = system + (self._tools(talk.tools) if talk.tools else "")
                opening = self._fill("system", content=text)
                if self.kind == "Llama2Template":
                    content = str(opening[0]) + content
                else:
                    pieces += opening
        elif index % 2 == 0 and self.kind != "LFDefaultTemplate":
            pieces += self.formats["separator"]
        if message.role == "user":
            numbers = {} if self.kind == "Llama2Template" else {"idx": str(index // 2)}
            return pieces + self._fill("user", content=content, **numbers)
        if message.role in ("assistant", "observation"):
            return pieces + self._fill(message.role, content=message.content)
        if message.role != "function":
            raise RecordError(f"a turn of {message.role} in the middle")
        if self.name in _CALL_LISTS:
            self._refuse_tools()
            return pieces + self._fill("function", content=calls_text(message.content))
        name, arguments = call_text(message.content)
        return pieces + self._fill("function", name=name, arguments=arguments)

    def _tools(self, tools: str) -> str:
        if self.name in _CALL_LISTS:
            raise RecordError(
                f"tools with the template {self.name}, which stop MindSpeed-LLM's own tool too"
            )
        # A template that names another form of tools shows none, as there.
        return tools_text(tools) if not self.formats.get("tools") else ""

    def _refuse_tools(self) -> None:
        if self.name == "qwen3":
            raise RecordError("tool calls with qwen3, which stop MindSpeed-LLM's own tool too")

    def _fill(self, part: str, **values: str) -> list[Piece]:
        """The slots of a part with their values."""
        pieces: list[Piece] = []
        many = part == "function" and "name" in values
        for slot in self.formats[part]:
            if isinstance(slot, str):
                for name, value in values.items():
                    slot = slot.replace("{{" + name + "}}", value, -1 if many else 1)
            pieces.append(slot)
        return pieces


def read_template(name: str, file: str | None) -> PromptTemplate:
    """The template called ``name``.

    :param file: a JSON list of templates, in MindSpeed-LLM's form, looked into first.
    :raises UsageError: there is none, or the file has another form.
    """
    found = _read_file(_OWN) | (_read_file(file) if file is not None else {})
    if name not in found:
        raise UsageError(
            f"--prompt-type {name} is not known",
            evidence=f"known: {', '.join(sorted(found))}",
            next="use one of them, or name a file that has it: --prompt-type-path with "
            "MindSpeed-LLM's configs/finetune/templates.json",
        )
    try:
        return _template(name, found[name])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"the template {name} has a form that is not known",
            evidence=f"{file}: {type(error).__name__}: {error}",
            next="write it as the other templates of MindSpeed-LLM's templates.json",
        ) from error


def _read_file(file: str) -> dict[str, Mapping[str, Any]]:
    try:
        listed = json.loads(Path(file).read_text(encoding="utf-8"))
        return {template["name"]: template for template in listed}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            "--prompt-type-path is no list of templates",
            evidence=f"{file}: {type(error).__name__}: {error}",
            next="give MindSpeed-LLM's configs/finetune/templates.json, or one of the same form",
        ) from error


def _template(name: str, data: Mapping[str, Any]) -> PromptTemplate:
    kind = data.get("template_class") or "Template"
    if kind not in _CLASSES:
        raise ValueError(f"template_class {kind}; known: {', '.join(_CLASSES)}")
    efficient = bool(data.get("efficient_eos", False))
    end: list[Any] = [] if efficient else [["eos_token"]]
    content = ["{{content}}"]
    defaults: dict[str, list[Any]] = {
        "user": content,
        "assistant": [*content, *end],
        "system": content,
        "function": ["Action: {{name}}\nAction Input: {{arguments}}", *end],
        "observation": (data.get("format_user") or {}).get("slots") or content,
        "separator": [],
        "prefix": [],
    }
    formats = {
        part: tuple(map(_slot, (data.get(f"format_{part}") or {}).get("slots") or slots))
        for part, slots in defaults.items()
    }
    for part in ("user", "assistant", "system", "observation"):
        if not any(isinstance(slot, str) and _HOLE.search(slot) for slot in formats[part]):
            raise ValueError(f"format_{part} has no {{{{content}}}}")
    tools = (data.get("format_tools") or {}).get("tool_format")
    if tools:
        formats["tools"] = (tools,)
    system = data.get("default_system") or ""
    thoughts = data.get("thought_words") or ("<think>\n", "\n</think>\n\n")
    return PromptTemplate(
        name,
        formats,
        kind,
        system if isinstance(system, str) else "".join(system),
        tuple(data.get("stop_words") or ()),
        (str(thoughts[0]), str(thoughts[1])),
        efficient,
        bool(data.get("replace_eos", False)),
    )


_HOLE: Final = re.compile(r"\{\{[a-zA-Z_][a-zA-Z0-9_]*\}\}")


def _slot(slot: Any) -> Slot:
    if isinstance(slot, str):
        return slot
    return Token(slot["token"]) if isinstance(slot, Mapping) else Token(slot[0])


def cut_pair(template: PromptTemplate, question: int, answer: int, room: int) -> tuple[int, int]:
    """How many tokens of a question and its answer remain in ``room``."""
    if template.kind in ("LFDefaultTemplate", "ReasoningTemplate"):
        return shares(question, answer, room)
    most = int(room * (answer / (question + answer))) if question + answer else 0
    most = max(most, 1)
    return min(max(room - min(most, answer), 0), question), min(most, answer)
