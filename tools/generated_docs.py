"""Documentation that is made from the code: python tools/generated_docs.py [--check].

Writes the reference pages and charts of :func:`pages`, and in the other pages the tables between
the marks ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``--check`` writes nothing and fails
when a page is stale.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from charts import table

if TYPE_CHECKING:
    from accel_bridge.patching import Patch

ROOT: Final = Path(__file__).resolve().parents[1]

_BLOCK: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_PATCHES: Final = """\
# Patches

Every change to Megatron, from the records in `patches/`. A patch is applied when its module is
imported, after the target's signature and the installed version were compared with the record.
Each decides whether the selected backend needs it: with CUDA and Transformer Engine most are
skipped. `accel-bridge patches` shows the state of each on your machine, with the reason;
`accel-bridge patches --json` has the whole record. `ACCEL_BRIDGE_PATCHES=-ID` leaves one out.
[How to write one](extend-patch.md).

"""

_KERNELS: Final = """\
# Kernels

What each [contract](concepts.md) computes, and what serves it on each backend. *reference* is the
contract's own PyTorch code. `accel-bridge backends --kernels` prints this for your machine, and
`accel-bridge parity kernels` compares each with float64. Shapes, dtypes and errors are in the
docstring of the reference, `accel_bridge/kernels/`. [How to write one](extend-kernel.md).

"""


def commands_table() -> str:
    """The subcommands of the command line."""
    from accel_bridge.plugins.manager import load_plugins

    groups: dict[str, list[tuple[str, str]]] = {}
    for found in load_plugins().commands().items:
        command = found.item
        groups.setdefault(command.group, []).append((f"`{command.name}`", command.summary))
    return table(("command", "does"), (row for group in groups.values() for row in group))


def variables_table() -> str:
    """The environment variables."""
    from accel_bridge.plugins.manager import load_plugins
    from accel_bridge.process.environment import VARIABLES

    variables = (*VARIABLES, *load_plugins().variables())
    return table(
        ("variable", "takes", "default", "what it does"),
        ((f"`{v.name}`", v.values, v.default or "not set", v.help) for v in variables),
    )


def flags_table() -> str:
    """What each flag means on GPUs, NPUs and CPUs."""
    import flags_page

    return table(flags_page.HEAD, flags_page.rows())


def ascend_limits_table(head: tuple[str, ...]) -> Callable[[], str]:
    """What torch_npu's operators take, by chip and CANN."""

    def of_limits() -> str:
        from accel_bridge.backends.ascend.limits import limit_rows

        cells: dict[str, list[str]] = {}
        for name, key, takes, links in limit_rows():
            cells.setdefault(f"`{name}`", []).append(f"`{key}` {takes} {links}")
        return table(head, ((name, "<br>".join(lines)) for name, lines in cells.items()))

    return of_limits


def ascend_rules_table() -> str:
    """What else they ask for."""
    from accel_bridge.backends.ascend.limits import CONDITIONS

    return table(
        ("operator", "rule", "how it is kept"),
        (
            (f"`{one.operator}`" if "_" in one.operator else one.operator, one.text, one.kept)
            for one in CONDITIONS
        ),
    )


def checks_table() -> str:
    """The checks of the doctor, by subject."""
    from accel_bridge.apps.doctor import STEPS
    from accel_bridge.plugins.manager import load_plugins

    checks = [*STEPS, *(found.item for found in load_plugins().checks().items)]
    subjects = dict.fromkeys(check.subject for check in checks)
    return table(
        ("check", "about", "looks for"),
        (
            (f"`{one.name}`{' *' if one.with_run else ''}", subject, sentence(one.looks_for))
            for subject in subjects
            for one in checks
            if one.subject == subject
        ),
    )


def examples_table() -> str:
    """The tutorials."""
    from examples import table as of_examples

    return of_examples()


def torch_npu_table() -> str:
    """Which torch_npu, PyTorch and CANN go together, the newest of each CANN first."""
    from accel_bridge.backends.ascend._compatibility import CANN_OF_TORCH_NPU

    by_cann: dict[str, list[str]] = {}
    for torch_npu, cann in CANN_OF_TORCH_NPU.items():
        by_cann.setdefault(cann, []).append(torch_npu)
    return table(
        ("CANN", "torch_npu, for the PyTorch of the same number"),
        ((cann, ", ".join(names)) for cann, names in by_cann.items()),
    )


def result(name: str, *words: str) -> Callable[[], str]:
    """A table of docs/results.md."""

    def of_results() -> str:
        import results_page

        made: str = getattr(results_page, name)(*words)
        return made

    return of_results


def strangers_table() -> str:
    """Other projects' tests with and without the bridge."""
    import json

    path = ROOT / "tests/conformance/strangers/results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for name, one in results.items():
        counts = [str(one[key]) for key in ("passed", "failed", "skipped", "same")]
        differ = [str(len(one[key])) for key in ("by_gpu", "different")]
        rows.append((f"{name} {one['version']}", *counts, *differ))
    head = ("project", "passed", "failed", "skipped", "alike", "ask for a GPU", "differ")
    return table(head, rows)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "flags": flags_table,
    "ascend_limits": ascend_limits_table(("operator", "arguments and pages")),
    "ascend_limits_zh": ascend_limits_table(("算子", "参数与出处")),
    "ascend_rules": ascend_rules_table,
    "strangers": strangers_table,
    "checks": checks_table,
    "examples": examples_table,
    "torch_npu": torch_npu_table,
    "speed": result("speed_table"),
    "speed_notes": result("speed_notes"),
    "step_time": result("time_sentence"),
    "frameworks": result("frameworks_table"),
    **{name: result("stated", name) for name in ("frameworks_left", "suites", "parity")},
    "mindspeed_summary": result("mindspeed_summary"),
    "mindspeed_trained": result("mindspeed_trained"),
    "reliability": result("reliability_table"),
    "preprocess": result("preprocess_table"),
}


def fill(text: str) -> str:
    """``text`` with each marked table regenerated.

    :raises KeyError: a mark names no table.
    """
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def patches_page() -> str:
    """docs/patches.md: every record, by Megatron's module, as a backend without kernels gets it."""
    os.environ["ACCEL_BRIDGE_LOG"] = "quiet"
    import accel_bridge
    from accel_bridge.plugins.manager import load_plugins

    bridge = accel_bridge.activate("cpu")
    try:
        ids = [status.patch.id for status in bridge.statuses]
    finally:
        accel_bridge.deactivate()
    plugins = load_plugins()
    found = [one.item for one in plugins.patches(plugins.backends()[0].item).items]
    rows = []
    for id in ids:
        variants = [patch for patch in found if patch.id == id]
        where = "<br>".join(_place(patch) for patch in variants)
        versions = "<br>".join(f"`{patch.requires}`" for patch in variants if patch.requires)
        rows.append((f"`{id}`", where, sentence(variants[0].why), versions))
    return _PATCHES + table(("patch", "changes", "why", "versions"), rows).replace(
        "`megatron-core>=0.12`", ""
    )


def _place(patch: Patch) -> str:
    module, _, name = patch.target.partition(":")
    return f"`{module.removeprefix('megatron.')}`<br>[`{name}`]({patch.upstream})"


def kernels_page() -> str:
    """docs/kernels.md: contracts by backends."""
    from accel_bridge.backends.ascend.kernels import KERNELS as ascend
    from accel_bridge.backends.cpu.kernels import KERNELS as cpu
    from accel_bridge.backends.cuda.kernels import KERNELS as cuda
    from accel_bridge.kernels import CONTRACTS

    def cells(name: str) -> Iterator[str]:
        for kernels in (cpu, cuda, ascend):
            kernel = next((one for one in kernels if one.contract.name == name), None)
            if kernel is None and not CONTRACTS[name].falls_back:
                yield "refused"
            else:
                yield "reference" if kernel is None or kernel.is_reference else sentence(kernel.why)

    rows = (
        (f"`{name}`", sentence(contract.formula), *cells(name))
        for name, contract in CONTRACTS.items()
    )
    return _KERNELS + table(("contract", "computes", "CPU", "CUDA", "Ascend"), rows)


def sentence(text: str) -> str:
    """Text of a record, safe in a Markdown table."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def pages() -> dict[str, str]:
    """Path -> what the file must hold."""
    from compatibility_page import chart as compatibility_chart
    from compatibility_page import page as compatibility_page
    from extension_table import page as extension_page
    from library_page import page as libraries_page
    from reference_pages import api_page, commands_page
    from results_page import fp8_chart, memory_chart, preprocess_chart, speed_chart

    made = {
        "docs/patches.md": patches_page(),
        "docs/kernels.md": kernels_page(),
        "docs/libraries.md": f"{libraries_page()}\n#{extension_page()}",
        "docs/compatibility.md": compatibility_page(),
        "docs/commands.md": commands_page(),
        "docs/api.md": api_page(),
        "docs/images/speed.svg": speed_chart(),
        "docs/images/fp8.svg": fp8_chart(),
        "docs/images/memory.svg": memory_chart(),
        "docs/images/preprocess.svg": preprocess_chart(),
        "docs/images/compatibility.svg": compatibility_chart(),
    }
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if name not in made and _BLOCK.search(text):
            made[name] = fill(text)
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
