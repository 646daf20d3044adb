"""A record to begin with, for a patch whose target moved, changed or went."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from accel_bridge.patching import Fit, SourceTree, against_tree, draft
from patching.support import make_patch, tag

OLD = {
    "frame/work.py": "def f(x):\n    return x\n\n\ndef g(x):\n    return 2 * x\n",
    "frame/uses.py": "from frame.work import f\n\nprint(f(1))\n",
}


def tree(directory: Path, files: dict[str, str]) -> SourceTree:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(directory, {"frame"})


@pytest.mark.parametrize(
    ("new", "fit", "said"),
    [
        (
            {"frame/other.py": OLD["frame/work.py"]},
            Fit.MOVED,
            ["frame.work:f -> frame.other:f", 'target="frame.other:f"', 'requires="frame>=2.0"'],
        ),
        (
            {"frame/work.py": "def f(y):\n    return y\n"},
            Fit.SIGNATURE,
            [
                "no parameter x in (y)",
                "uses=(('x', 'NEW'),),",
                'requires="frame>=1,<2.0"',
                "-def f(x):",
                "+def f(y):",
            ],
        ),
        (
            {"frame/work.py": "def g(x):\n    return x\n"},
            Fit.GONE,
            ["frame/uses.py:1", 'elsewhere="since 2.0 ..."', "-def f(x):"],
        ),
    ],
)
def test_a_draft_says_where_it_went(
    new: dict[str, str], fit: Fit, said: list[str], tmp_path: Path
) -> None:
    patch = make_patch("frame.work:f", tag("w"), ("x",), id="mine", requires="frame>=1")
    old, changed = tree(tmp_path / "old", OLD), tree(tmp_path / "new", new)
    (verdict,) = against_tree([patch], changed, lambda _: "2.0")
    assert verdict.fit is fit
    text = draft(verdict, old, changed, "2.0", "frame")
    assert [words for words in said if words not in text] == []


@pytest.mark.parametrize(
    ("earlier", "ends", "begins"), [(False, "<2.0", ">=2.0"), (True, ">2.0", "<=2.0")]
)
def test_a_record_without_a_requirement_gets_whole_ones(
    earlier: bool, ends: str, begins: str, tmp_path: Path
) -> None:
    patch = make_patch("frame.work:f", tag("w"), ("x",), id="mine")
    old = tree(tmp_path / "old", OLD)
    changed = tree(tmp_path / "new", {"frame/other.py": OLD["frame/work.py"]})
    (verdict,) = against_tree([patch], changed)
    text = draft(verdict, old, changed, "2.0", "frame-core", earlier=earlier)
    assert re.findall('requires="(.*)"', text) == [f"frame-core{ends}", f"frame-core{begins}"]
