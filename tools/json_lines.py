"""JSON with a line for each row, so that a diff shows changes row by row."""

from __future__ import annotations

import json
from typing import Any


def dumps(value: Any, depth: int, indent: str = "  ", before: str = "") -> str:
    """As JSON; of ``depth`` levels, each entry has a line of its own; a list of texts has one.

    :param before: what the lines around it begin with.
    """
    first = value[0] if isinstance(value, list) and value else value
    if not depth or not isinstance(first, dict) or not value:
        return json.dumps(value)
    named = value.items() if isinstance(value, dict) else (("", one) for one in value)
    inside = before + indent
    lines = [
        f"{inside}{f'{json.dumps(name)}: ' if name else ''}{dumps(one, depth - 1, indent, inside)}"
        for name, one in named
    ]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + ",\n".join(lines) + f"\n{before}{end}"
