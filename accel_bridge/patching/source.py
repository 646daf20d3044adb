"""Digests of a function's source, without comments and documentation."""

from __future__ import annotations

import ast
import hashlib
import inspect
from typing import Any


def source_digest(source: str) -> str:
    """Digest of the source of one definition or statement, decorators included.

    Blank lines, comment lines, the docstring and the overall indentation do not count. It works on
    the text, so every version of Python computes the same digest.

    :raises SyntaxError: ``source`` is not one whole definition or statement.
    """
    lines = source.splitlines()
    margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    # Indented text is parsed as it stands: dedenting would change strings that span lines.
    head = ["if True:"] if margin else []
    tree = ast.parse("\n".join([*head, *lines]))
    node = tree.body[0].body[0] if head else tree.body[0]  # type: ignore[attr-defined]
    documentation = _documentation(node, len(head))
    kept = [
        line.removeprefix(margin).rstrip()
        for number, line in enumerate(lines, 1)
        if number not in documentation and line.strip() and not line.lstrip().startswith("#")
    ]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def digest_of(function: Any) -> str | None:
    """Digest of a loaded function's source; None if there is no source to read."""
    try:
        return source_digest(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError, ValueError, SyntaxError):
        return None


def _documentation(node: ast.AST, offset: int) -> range:
    """Lines of the docstring of a definition."""
    body = getattr(node, "body", [])
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return range(value.lineno - offset, (value.end_lineno or value.lineno) + 1 - offset)
    return range(0)
