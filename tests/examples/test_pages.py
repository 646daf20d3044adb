"""docs/examples/README.md: every row has a script and a picture, and every link leads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from end_to_end.launcher import ROOT

FOLDER = ROOT / "docs" / "examples"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
FACTS = json.loads((FOLDER / "examples.json").read_text(encoding="utf-8"))


def pixels(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


@pytest.mark.parametrize("name", FACTS)
def test_a_row_has_all_that_it_shows(name: str) -> None:
    fact = FACTS[name]
    assert fact["title"]
    assert fact.get("cpu", 1) > 0
    assert re.search(r"loss \d+\.\d+ to \d+\.\d+ in \d+ iterations", fact["alt"])
    width, height = pixels(FOLDER / name / "curve.png")
    assert width > height > 200
    assert (FOLDER / name / "curve.png").stat().st_size < 150_000
    assert PAGE.count(f"| `bash docs/examples/{name}/run.sh` |") == 1


def test_links_and_pictures_are_there() -> None:
    targets = re.findall(r'\]\(([^)#\s]+)|<img src="([^"]+)"', PAGE)
    assert len(targets) > 30
    for link, image in targets:
        assert (FOLDER / (link or image)).exists(), link or image
