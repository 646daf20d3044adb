"""What mkdocs asks while it makes the site of docs/ (``hooks`` in mkdocs.yml).

Some pages stand in the repository's root, where one looks for them. The site gets them too, and a
link from one place to the other leads to the page on the site. Links to other files of the
repository, which the site does not have, become plain words.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]

#: File in the root -> the site's page. (A README would be the index of its folder.)
ROOT_PAGES: Final = {
    "README.md": "about.md",
    "README.zh-CN.md": "about.zh-CN.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}

_LINK: Final = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_IMAGE: Final = re.compile(r"(?P<before><img src=\")(?P<to>[^\"]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, with the fragments of the changelog under its head."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name == "CHANGELOG.md":
            text += unreleased()
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Lead links to where the site has the page."""
    source = page.file.src_uri
    here = {there: name for name, there in ROOT_PAGES.items()}.get(source, f"docs/{source}")

    def link(match: re.Match[str]) -> str:
        to = lead(match["to"], here, source, files)
        return match["text"] if to is None else f"[{match['text']}]({to}{match['anchor'] or ''})"

    def image(match: re.Match[str]) -> str:
        return match["before"] + (lead(match["to"], here, source, files) or match["to"])

    blocks = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    blocks[::2] = [_IMAGE.sub(image, _LINK.sub(link, text)) for text in blocks[::2]]
    return "".join(blocks)


def on_page_context(context: Any, page: Page, config: MkDocsConfig, **_: Any) -> None:
    """The site's own words (search, table of contents) are in the page's language."""
    chinese = page.file.src_uri.endswith(".zh-CN.md")
    config.theme["language"] = "zh" if chinese else "en"


def lead(to: str, here: str, page: str, files: Files) -> str | None:
    """A link's target on the site; None if it has none.

    :param to: the link as it stands in the repository.
    :param here: path of the file that holds it, from the root.
    :param page: path of its page, from the site's root.
    """
    if "://" in to or to.startswith("mailto:"):
        return to
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), to))
    target = ROOT_PAGES.get(path, path.removeprefix("docs/"))
    if (
        path not in ROOT_PAGES
        and (ROOT / path).exists()
        and files.get_file_from_path(target) is None
    ):
        return None
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def unreleased() -> str:
    """The fragments in changelog.d, by kind."""
    kinds: dict[str, list[str]] = {}
    for fragment in sorted((ROOT / "changelog.d").glob("+*.md")):
        kind = fragment.name.split(".")[-2]
        text = " ".join(fragment.read_text(encoding="utf-8").split())
        kinds.setdefault(kind.capitalize(), []).append(f"- {text}\n")
    parts = [f"\n### {kind}\n\n{''.join(lines)}" for kind, lines in sorted(kinds.items())]
    return "\n## Not released yet\n" + "".join(parts)
