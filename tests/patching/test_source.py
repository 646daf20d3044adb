from __future__ import annotations

import pytest

from accel_bridge.patching import source_digest
from accel_bridge.patching.source import digest_of

PLAIN = """\
def f(x):
    y = x + 1
    return y
"""


def injected(x: int) -> int:
    """Documentation."""
    # A comment.
    return x + 1


@pytest.mark.parametrize(
    "same",
    [
        'def f(x):\n    """What it does."""\n    y = x + 1\n    return y\n',
        "def f(x):\n    # why\n\n    y = x + 1\n    return y\n\n",
        "    def f(x):\n        y = x + 1\n        return y\n",
    ],
)
def test_comments_documentation_and_indentation_do_not_count(same: str) -> None:
    assert source_digest(same) == source_digest(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("+ 1", "+ 2"),
        PLAIN.replace("(x)", "(x, z=1)"),
        "@decorated\n" + PLAIN,
        PLAIN.replace("    return y", "        return y"),
    ],
)
def test_everything_else_counts(other: str) -> None:
    try:
        assert source_digest(other) != source_digest(PLAIN)
    except SyntaxError:
        assert "        return" in other


def test_a_loaded_function_has_the_digest_of_its_text() -> None:
    text = "def injected(x: int) -> int:\n    return x + 1\n"
    assert digest_of(injected) == source_digest(text)
    assert digest_of(len) is None
    assert digest_of(3) is None
