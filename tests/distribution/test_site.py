"""The site of docs/: it is made without a warning, and asks nothing of a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from distribution.support import ROOT

pytestmark = pytest.mark.slow

#: What a browser fetches by itself when it shows a page.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|<link[^>]+rel=[\"']?(?:stylesheet|preconnect|icon|preload)[^>]+href=[\"']?(https?:[^\"' >]+)"
    r"|(?:url\(|@import )[\"']?(https?:[^\"')]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        # Material's own news of its end of life (May 2027), which is no warning about a page.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return directory


def test_every_page_is_on_it_and_in_the_menu(site: Path) -> None:
    homes = {
        chinese: (site / name).read_text(encoding="utf-8")
        for chinese, name in ((False, "index.html"), (True, "index.zh-CN.html"))
    }
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        made = name.replace("README.html", "index.html")
        assert (site / made).is_file(), made
        home = homes[".zh-CN." in made]
        assert f'href="{made}"' in home, f"{page} is not in mkdocs.yml's nav"


def test_a_reader_without_a_network_sees_all_of_it(site: Path) -> None:
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert FETCHED.findall(path.read_text(encoding="utf-8")) == [], path
