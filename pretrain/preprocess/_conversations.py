"""A record of instruction data as a conversation, as MindSpeed-LLM's handlers take it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._handlers import Columns, Handler


class RecordError(Exception):
    """Why a record is no conversation at all."""


@dataclass(frozen=True)
class Message:
    """One turn.

    :param role: ``user``, ``assistant``, ``observation``, ``function`` or ``system``.
    """

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """Turns up to the last question, and the answer to it (two of them in a pair)."""

    prompt: list[Message]
    response: list[Message]
    system: str = ""
    tools: str = ""
    #: Turns with an empty question and an empty answer, as there for what does not alternate.
    messages: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        messages = [*self.prompt, *self.response]
        if len(self.prompt) % 2 != 1 or len(self.response) != 1:
            messages = [Message("user", ""), Message("assistant", "")]
        object.__setattr__(self, "messages", messages)


def conversation(
    record: Mapping[str, Any], handler: Handler, columns: Columns
) -> Conversation | None:
    """The record's conversation; None where its turns make none and it is left out.

    :raises RecordError: a part that must be there is not, or is not text.
    """
    if columns.messages:
        found = _turns(record, handler, columns)
    else:
        found = _instruction(record, handler.kind == "pairs", columns)
    return found if found and found.prompt and found.response else None


def _instruction(record: Mapping[str, Any], is_pair: bool, columns: Columns) -> Conversation:
    """An instruction with its input and answer, and earlier turns."""
    prompt: list[Message] = []
    history = record.get(columns.history) if columns.history else None
    if isinstance(history, list):
        for turn in history:
            if not isinstance(turn, list) or len(turn) != 2:
                raise RecordError(f"{columns.history!r} is no list of questions with answers")
            prompt += [Message("user", _text(turn[0])), Message("assistant", _text(turn[1]))]
    parts = (part(record, columns.prompt), record.get(columns.query) if columns.query else None)
    prompt.append(Message("user", "\n".join(_text(one) for one in parts if one)))
    answers = (columns.chosen, columns.rejected) if is_pair else (columns.response,)
    response: list[Message] = []
    for name in answers:
        answer = part(record, name)
        if isinstance(answer, str):
            response.append(Message("assistant", answer))
        elif isinstance(answer, list) and not is_pair:
            response += [Message("assistant", _text(one)) for one in answer]
        elif answer is not None:
            raise RecordError(f"{name!r} is no text")
    return Conversation(prompt, response, _optional(record, columns.system))


def _turns(record: Mapping[str, Any], handler: Handler, columns: Columns) -> Conversation | None:
    """Turns that say who speaks."""
    turns = part(record, columns.messages)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise RecordError(f"{columns.messages!r} is no list of turns")
    if not turns:
        return None
    system = _optional(record, columns.system)
    if columns.system_role and turns[0].get(columns.role) == columns.system_role:
        system, turns = _text(turns[0].get(columns.content) or ""), turns[1:]
    roles = {
        columns.user: "user",
        columns.assistant: "assistant",
        columns.observation: "observation",
        columns.function: "function",
        columns.system_role: "system",
    }
    roles.pop("", None)
    if not handler.alternates:
        return _free_turns(record, turns, roles, system, columns)
    speakers = ((columns.user, columns.observation), (columns.assistant, columns.function))
    if any(turn.get(columns.role) not in speakers[i % 2] for i, turn in enumerate(turns)):
        return None
    messages = [
        Message(roles[turn[columns.role]], _text(turn[columns.content]))
        for turn in turns
        if turn.get(columns.content) is not None
    ]
    tools = _optional(record, columns.tools)
    is_pair = handler.kind == "pairs"
    if len(messages) % 2 != (1 if is_pair else 0):
        return None
    if not is_pair:
        return Conversation(messages[:-1], messages[-1:], system, tools)
    answers = [part(record, name) for name in (columns.chosen, columns.rejected)]
    if not all(isinstance(answer, dict) for answer in answers):
        raise RecordError(f"{columns.chosen!r} and {columns.rejected!r} are no turns")
    if any(answer.get(columns.role) not in speakers[1] for answer in answers):
        return None
    response = [
        Message(roles[answer[columns.role]], _text(answer.get(columns.content)))
        for answer in answers
    ]
    return Conversation(messages, response, system, tools)


def _free_turns(
    record: Mapping[str, Any],
    turns: list[dict[str, Any]],
    roles: Mapping[str, str],
    system: str,
    columns: Columns,
) -> Conversation | None:
    """Turns of chat data that need not alternate; a tool's answer may follow another's."""
    if not turns or any(turn.get(columns.role) not in roles for turn in turns):
        return None
    messages = [
        Message(roles[turn[columns.role]], _text(turn.get(columns.content) or "")) for turn in turns
    ]
    if messages[0].role not in ("user", "system") or messages[-1].role != "assistant":
        return None
    tools = record.get(columns.tools, "") if columns.tools else ""
    if isinstance(tools, (list, dict)):
        tools = json.dumps(tools, ensure_ascii=False)
    return Conversation(messages[:-1], messages[-1:], system, _text(tools or ""))


def part(record: Mapping[str, Any], name: str) -> Any:
    """A value of the record; None for the empty name.

    :raises RecordError: it is not there.
    """
    if not name:
        return None
    if name not in record:
        present = ", ".join(list(record)[:10]) or "none"
        raise RecordError(f"no key {name!r}; the record's keys: {present}")
    return record[name]


def _optional(record: Mapping[str, Any], name: str) -> str:
    return _text(record.get(name) or "") if name else ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise RecordError(f"not text but {type(value).__name__}: {str(value)[:60]}")
    return value
