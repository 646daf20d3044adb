"""Tools and their calls as text, where a template has no form of its own for them.

The text is the one that LLaMA-Factory and MindSpeed-LLM train models with, so it is data here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ._conversations import RecordError

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
