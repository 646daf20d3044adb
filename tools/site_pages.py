"""What mkdocs asks while it makes the site of docs/ (``hooks`` in mkdocs.yml).

Some pages stand in the repository's root, where one looks for them: the READMEs are the site's
home. Links between them and docs/ lead to pages on the site; links to other files of the
repository, which the site does not have, become plain words. Headings between ``<!-- tabs -->`` and
``<!-- end tabs -->`` become tabs, so that the same file reads well without the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import examples
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Link, Navigation, Section
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]

NEWLINE: Final = "\n"

#: File in the root -> the site's page.
ROOT_PAGES: Final = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}

_LINK: Final = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_IMAGE: Final = re.compile(r"(?P<before><img src=\")(?P<to>[^\"]+)")
_TABS: Final = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end tabs -->$", re.DOTALL | re.MULTILINE)
_HEAD: Final = "GPU | NPU | CPU | what it does, or why |\n|---|---|---|---"
_FLAGS: Final = re.compile(
    r"^\| (?P<flags>`--[^|]*?) \| (?P<answers>[^|]*?) \|(?P<rest>.*)$", re.MULTILINE
)
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
#: The link to the other language at the top of a page; the site has a menu for it.
_LANGUAGE: Final = re.compile(r"^\[(?:简体中文|English)\]\(\S+\)\n\n", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and one for each tutorial."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for name in examples.read():
        page = f"examples/{name}.md"
        inclusion = InclusionLevel.NOT_IN_NAV
        made = File.generated(config, page, content=tutorial(name), inclusion=inclusion)
        files.append(made)
    return files


def tutorial(name: str) -> str:
    """A tutorial's page: the command, a real run of it, other commands, the script."""
    fact = examples.read()[name]
    file = examples.script(fact)
    directory = ROOT / "docs/examples" / name
    script = (directory / file).read_text(encoding="utf-8")
    head = re.match(r"#![^\n]*\n((?:#[^\n]*\n)+)", script)
    lines = (head[1] if head else "").splitlines()
    what = " ".join(line[2:] for line in lines if not line.startswith("#   "))
    what = re.sub(r"\s*[^.]*:$", "", what)  # a sentence that ends with a command
    others = []
    for line in lines:
        command, _, why = line[4:].partition("  ")
        if line.startswith("#   ") and command != f"bash {file}":
            others += [f"# {why.strip()}"] if why else []
            others.append(command.replace(f"bash {file}", f"bash docs/examples/{name}/{file}"))
    minutes = f"{fact['cpu'] / 60:.1f} minutes of one core" if "cpu" in fact else "a few minutes"
    curve = f'<img src="{name}/curve.png" alt="{fact.get("alt")}" width="760">\n'
    get = f"What you get: {fact['alt']}.\n\n{curve}" if "alt" in fact else ""
    shown = directory / "output.txt"
    output = shown.read_text(encoding="utf-8") if shown.is_file() else ""
    expected = f"""\
## Expected output

A run on a CPU, {fact.get("date")}; `...` stands for what is left out.

```text
{output}```
"""
    return f"""\
# {fact["title"]}

{what}

```console
$ bash docs/examples/{name}/{file}
```

It takes {minutes} on a CPU. [Install](../start.md) first; nothing is downloaded.

{get}
{expected if output else ""}
## Change this next

Variables at the top of the script set sizes and inputs; put them before the command.

```bash
{NEWLINE.join(others)}
```

[All tutorials](README.md#change-this-next).

## The script

`docs/examples/{name}/{file}`:

```bash
{script}```
"""


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Lead links to where the site has the page, and make tabs."""
    source = page.file.src_uri
    here = {there: name for name, there in ROOT_PAGES.items()}.get(source, f"docs/{source}")

    def link(match: re.Match[str]) -> str:
        to = lead(match["to"], here, source, files)
        return match["text"] if to is None else f"[{match['text']}]({to}{match['anchor'] or ''})"

    def image(match: re.Match[str]) -> str:
        return match["before"] + (lead(match["to"], here, source, files) or match["to"])

    if source == "flags.md":
        page.meta["search"] = {"boost": 30}  # who types a flag looks for this page
        page.meta["hide"] = ["toc"]  # the table takes its room
        markdown = _FLAGS.sub(each_flag, markdown)
        markdown = markdown.replace("| GPU/NPU/CPU |", "| GPU | NPU | CPU |")
        markdown = markdown.replace("GPU | NPU | CPU | what it does, or why |\n|---|---", _HEAD)
    markdown = _LANGUAGE.sub("", markdown, count=1)
    blocks = _FENCED.split(markdown)
    blocks[::2] = [_IMAGE.sub(image, _LINK.sub(link, text)) for text in blocks[::2]]
    return _TABS.sub(lambda match: tabs(match[1]), "".join(blocks))


def each_flag(row: re.Match[str]) -> str:
    """A row of the table of flags as one for each flag and three answers, to be filtered."""
    flags = row["flags"].split(", ")
    # Names that a remark in parentheses belongs to stay together.
    flags = flags if "(" not in row["flags"] else [row["flags"]]
    answers = row["answers"].split("/")
    answers = answers if len(answers) == 3 else [row["answers"]] * 3
    return "\n".join(f"| {flag} | {' | '.join(answers)} |{row['rest']}" for flag in flags)


def tabs(text: str) -> str:
    """Sections of the level that comes first as tabs."""
    made = []
    in_block = False
    mark = text.split(maxsplit=1)[0] + " "
    for line in text.splitlines():
        in_block ^= line.startswith("```")
        if line.startswith(mark) and not in_block:
            made.append(f'=== "{line.removeprefix(mark)}"')
        else:
            made.append(f"    {line}".rstrip())
    return "\n".join(made)


def on_page_context(context: Any, page: Page, config: MkDocsConfig, nav: Navigation) -> None:
    """The site's own words are in the page's language, and the menu of languages keeps the page."""
    source = page.file.src_uri
    chinese = source.endswith(".zh-CN.md")
    config.theme["language"] = "zh" if chinese else "en"
    english = source.replace(".zh-CN.md", ".md")
    other = english.replace(".md", ".zh-CN.md")
    here = {there: name for name, there in ROOT_PAGES.items()}
    if not (ROOT / here.get(other, f"docs/{other}")).is_file():
        other = "index.zh-CN.md"
    for entry in config.extra["alternate"]:
        found = english if entry["lang"] == "en" else other
        entry["link"] = address(found)
    context["nav"] = menu(nav, chinese, config.extra["english_pages"])


def address(source: str) -> str:
    """Where the site has a page, from the site's root."""
    return source.replace("README.md", "index.md").replace(".md", ".html")


def menu(nav: Navigation, chinese: bool, english_pages: Mapping[str, str]) -> Navigation:
    """The menu in one language: the last entry of mkdocs.yml's is the Chinese one."""
    *english, last = nav.items
    assert isinstance(last, Section)
    if not chinese:
        return Navigation(english, nav.pages)
    links = [Link(title, address(source)) for title, source in english_pages.items()]
    return Navigation([*last.children, Section("英文文档", [*links])], nav.pages)


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """The search's index as a script too, which a page on the disk may load."""
    index = Path(config.site_dir) / "search/search_index.json"
    text = index.read_text(encoding="utf-8")
    index.with_suffix(".js").write_text(f"var __index = {text}\n", encoding="utf-8")


def lead(to: str, here: str, page: str, files: Files) -> str | None:
    """A link's target on the site; None if it has none.

    :param to: the link as it stands in the repository.
    :param here: path of the file that holds it, from the root.
    :param page: path of its page, from the site's root.
    """
    if "://" in to or to.startswith("mailto:"):
        return to
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), to))
    script = re.fullmatch(r"docs/examples/([\w-]+)/(?:run|find|rehearse)\.sh", path)
    if script and script[1] in examples.read():
        path = f"docs/examples/{script[1]}.md"
    target = ROOT_PAGES.get(path, path.removeprefix("docs/"))
    if (
        path not in ROOT_PAGES
        and (ROOT / path).exists()
        and files.get_file_from_path(target) is None
    ):
        return None
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
