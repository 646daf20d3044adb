"""Documentation that is made from the code: python tools/generated_docs.py [--check].

Writes docs/patches.md, docs/libraries.md, docs/compatibility.md, docs/clients.md, docs/commands.md
and docs/api.md, and in the other pages the tables between the marks ``<!-- generated: NAME -->``
and ``<!-- end -->``. ``--check`` writes nothing and fails when a page is stale.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

PATCHES_PAGE: Final = "docs/patches.md"
LIBRARIES_PAGE: Final = "docs/libraries.md"
COMPATIBILITY_PAGE: Final = "docs/compatibility.md"
CLIENTS_PAGE: Final = "docs/clients.md"

#: Pages in which marked tables are filled in.
PAGES: Final = (
    "docs/plugins.md",
    "docs/usage.md",
    "docs/ascend.md",
    "docs/ascend.zh-CN.md",
    "docs/mindspeed-llm.md",
    "docs/mindspeed-llm.zh-CN.md",
    "docs/doctor.md",
    "docs/doctor.zh-CN.md",
    "docs/performance.md",
    "docs/performance.zh-CN.md",
    "docs/examples/README.md",
    "docs/examples/README.zh-CN.md",
)

_BLOCK: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_INTRODUCTION: Final = """\
# The patches

Everything that accel_bridge changes in Megatron, and why. This page is made from the records in
`patches/` by `make docs`; a test fails when it is stale. `accel-bridge patches` shows the state of
each on your machine: *applied*, *reached* (called at least once), *skipped* with the reason, or
*failed* with the error.

A patch is applied when Megatron's module is imported, after its target's real signature and the
installed version have been compared with the record. Each patch decides whether the backend needs
it: with CUDA and Transformer Engine most are skipped. `accel_bridge.deactivate()` puts every
original object back. To leave one out: `ACCEL_BRIDGE_PATCHES=-ID`.

"""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, *rows)]
    return lines[0] + "|---" * len(head) + "|\n" + "".join(lines[1:])


def commands_table() -> str:
    """The subcommands of the command line."""
    from accel_bridge._plugins import load_plugins

    groups: dict[str, list[tuple[str, str]]] = {}
    for found in load_plugins().commands().items:
        command = found.item
        groups.setdefault(command.group, []).append((f"`{command.name}`", command.summary))
    return table(("command", "does"), (row for group in groups.values() for row in group))


def variables_table() -> str:
    """The environment variables."""
    from accel_bridge._environment import VARIABLES
    from accel_bridge._plugins import load_plugins

    variables = (*VARIABLES, *load_plugins().variables())
    return table(
        ("variable", "takes", "default", "what it does"),
        ((f"`{v.name}`", v.values, v.default or "not set", v.help) for v in variables),
    )


def arguments_table() -> str:
    """Arguments of Megatron that are changed."""
    from accel_bridge.patches.arguments import RULES

    return table(
        ("argument", "becomes", "why"),
        ((f"`{rule.name}`", f"`{rule.value}`", rule.why) for rule in RULES),
    )


def refused_table() -> str:
    """Arguments of Megatron that are refused."""
    from accel_bridge.patches.arguments import REFUSED

    return table(
        ("flag", "why", "instead"),
        ((f"`{rule.flag}`", rule.why, rule.next) for rule in REFUSED),
    )


def ascend_rules_table() -> str:
    """The argument rules of torch_npu's operators."""
    from accel_bridge.backends.ascend.kernels.limits import rule_rows

    return table(
        ("operator", "rule", "how it is kept", "emulated", "source"),
        ((f"`{row[0]}`" if "_" in row[0] else row[0], *row[1:]) for row in rule_rows()),
    )


def ascend_flags_table() -> str:
    """Flags of MindSpeed's scripts, those that share an answer in one row."""
    from accel_bridge.patches.mindspeed._flag import Effect
    from accel_bridge.patches.mindspeed.flags import FLAGS

    rows: dict[tuple[str, str, str], list[str]] = {}
    for flag in FLAGS.values():
        answer = {
            Effect.IGNORED: "ignored with a warning",
            Effect.REFUSED: f"refused: {flag.next}",
            Effect.MAPPED: f"becomes {flag.becomes or f'`{flag.to}`'}",
        }[flag.effect]
        rows.setdefault((flag.effect.value, flag.means, answer), []).append(f"`{flag.name}`")
    return table(
        ("flags", "what they do", "here"),
        ((", ".join(names), means, answer) for (_, means, answer), names in rows.items()),
    )


def hooks_section() -> str:
    """The hooks that a plugin may implement."""
    from reference_pages import hooks_section

    return hooks_section()


def checks_table() -> str:
    """The checks of the doctor, by subject."""
    from accel_bridge._plugins import load_plugins
    from accel_bridge.apps.doctor import STEPS

    checks = [*STEPS, *(found.item for found in load_plugins().checks().items)]
    subjects = dict.fromkeys(check.subject for check in checks)
    return table(
        ("check", "about", "looks for", "needs arguments"),
        (
            (f"`{one.name}`", subject, sentence(one.looks_for), "yes" if one.with_run else "")
            for subject in subjects
            for one in checks
            if one.subject == subject
        ),
    )


def measured(name: str) -> Callable[[], str]:
    """A table about measured speed."""

    def of_performance() -> str:
        import performance_table

        made: str = getattr(performance_table, f"{name}_table")()
        return made

    return of_performance


def examples_table() -> str:
    """The tutorials."""
    from examples import table as of_examples

    return of_examples("title", ("tutorial", "command", "processor minutes", "curve"))


def examples_table_chinese() -> str:
    """The tutorials, in Chinese."""
    from examples import table as of_examples

    return of_examples("chinese", ("教程", "命令", "处理器时间（分钟）", "曲线"))


def mindspeed(name: str, language: str) -> Callable[[], str]:
    """A table about MindSpeed-LLM's scripts."""

    def of_mindspeed() -> str:
        from mindspeed_page import summary, table

        return summary(language) if name == "summary" else table(name, language)

    return of_mindspeed


TABLES: Final[dict[str, Callable[[], str]]] = {
    **{
        f"mindspeed_{name}{suffix}": mindspeed(name, language)
        for name in ("summary", "scripts", "flags", "trained")
        for suffix, language in (("", "english"), ("_chinese", "chinese"))
    },
    "commands": commands_table,
    "variables": variables_table,
    "arguments": arguments_table,
    "refused": refused_table,
    "ascend_rules": ascend_rules_table,
    "ascend_flags": ascend_flags_table,
    "hooks": hooks_section,
    "checks": checks_table,
    "performance": measured("performance"),
    **{
        f"performance_{name}": measured(name)
        for name in ("layouts", "asked", "parts", "before", "earlier")
    },
    "examples": examples_table,
    "examples_chinese": examples_table_chinese,
}


def fill(text: str) -> str:
    """``text`` with each marked table regenerated.

    :raises KeyError: a mark names no table.
    """
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def patches_page() -> str:
    """docs/patches.md: every record, as a backend without fused kernels gets it."""
    os.environ["ACCEL_BRIDGE_LOG"] = "quiet"
    import accel_bridge

    bridge = accel_bridge.activate("cpu")
    try:
        patches = [status.patch for status in bridge.statuses]
    finally:
        accel_bridge.deactivate()
    rows = ((f"[`{patch.id}`](#{patch.id})", sentence(patch.why)) for patch in patches)
    parts = [_INTRODUCTION, table(("patch", "why it exists"), rows)]
    for patch in patches:
        target, source = f"`{patch.target}`", patch.upstream
        details = {
            "Changes": f"[{target}]({source}) ({patch.kind.value})",
            "Why": sentence(patch.why),
            "Without it": sentence(patch.loses),
            "Applies to": f"`{patch.requires}`",
            "Goes away when": sentence(patch.removed_when),
        }
        lines = "".join(f"- {name}: {text}\n" for name, text in details.items())
        parts.append(f"\n## {patch.id}\n\n{lines}")
    return "".join(parts)


def sentence(text: str) -> str:
    """Text of a record, safe in a Markdown table."""
    return text.replace("|", "\\|").replace("*", "\\*")


def pages() -> dict[str, str]:
    """Path -> what the page must hold."""
    from clients_page import page as clients_page
    from compatibility_page import page as compatibility_page
    from library_page import page as libraries_page
    from reference_pages import API_PAGE, COMMANDS_PAGE, api_page, commands_page

    made = {
        PATCHES_PAGE: patches_page(),
        LIBRARIES_PAGE: libraries_page(),
        COMPATIBILITY_PAGE: compatibility_page(),
        CLIENTS_PAGE: clients_page(),
        COMMANDS_PAGE: commands_page(),
        API_PAGE: api_page(),
    }
    for page in PAGES:
        made[page] = fill((ROOT / page).read_text(encoding="utf-8"))
    return made


def main(words: list[str]) -> int:
    """Write the pages, or with ``--check`` name those that are stale."""
    made = pages()
    stale = [
        page
        for page, text in made.items()
        if not (ROOT / page).is_file() or (ROOT / page).read_text(encoding="utf-8") != text
    ]
    if words == ["--check"]:
        for page in stale:
            print(f"{page} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for page in stale:
        (ROOT / page).write_text(made[page], encoding="utf-8")
        print(f"wrote {page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
