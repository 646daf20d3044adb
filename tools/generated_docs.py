"""Documentation that is made from the code: python tools/generated_docs.py [--check].

Writes the reference pages and charts of :func:`pages`, and in the other pages the tables between
the marks ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``--check`` writes nothing and fails
when a page is stale.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import compatibility_page
import examples
import extension_table
import library_page
import results_page
from charts import table
from reference_pages import api_page, commands_page

import accel_bridge
from accel_bridge.apps.doctor import STEPS
from accel_bridge.backends.ascend._compatibility import CANN_OF_TORCH_NPU
from accel_bridge.backends.ascend.kernels import KERNELS as ASCEND
from accel_bridge.backends.ascend.limits import CONDITIONS, limit_rows
from accel_bridge.backends.cpu.kernels import KERNELS as CPU
from accel_bridge.backends.cuda.kernels import KERNELS as CUDA
from accel_bridge.kernels import CONTRACTS
from accel_bridge.patching import Patch
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process.environment import VARIABLES

ROOT: Final = Path(__file__).resolve().parents[1]

_BLOCK: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_PATCHES: Final = """\
# Patches

Every change to Megatron, from the records in `patches/`. A patch is applied when its module is
imported, after the target's signature and the installed version were compared with the record.
Each decides whether the selected backend needs it. `accel-bridge patches` shows the state of each
on your machine, with the reason; `accel-bridge patches --json` has the whole record.
`ACCEL_BRIDGE_PATCHES=-ID` leaves one out. [How to write one](extend-patch.md).

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
    groups: dict[str, list[tuple[str, str]]] = {}
    for found in load_plugins().commands().items:
        command = found.item
        groups.setdefault(command.group, []).append((f"`{command.name}`", command.summary))
    return table(("command", "does"), (row for group in groups.values() for row in group))


def variables_table() -> str:
    """The environment variables."""
    variables = (*VARIABLES, *load_plugins().variables())
    return table(
        ("variable", "takes", "default", "what it does"),
        ((f"`{v.name}`", v.values, v.default or "not set", v.help) for v in variables),
    )


def flags_table() -> str:
    """What each flag means on GPUs, NPUs and CPUs."""
    import flags_page  # late: the order of flags is the order in which modules are imported

    return table(flags_page.HEAD, flags_page.rows())


def ascend_limits_table(*head: str) -> str:
    """What torch_npu's operators take, by chip and CANN."""
    cells: dict[str, list[str]] = {}
    for name, key, takes, links in limit_rows():
        cells.setdefault(f"`{name}`", []).append(f"`{key}` {takes} {links}")
    return table(head, ((name, "<br>".join(lines)) for name, lines in cells.items()))


def ascend_rules_table() -> str:
    """What else they ask for."""
    return table(
        ("operator", "rule", "how it is kept"),
        (
            (f"`{one.operator}`" if "_" in one.operator else one.operator, one.text, one.kept)
            for one in CONDITIONS
        ),
    )


def checks_table() -> str:
    """The checks of the doctor, by subject."""
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


def torch_npu_table() -> str:
    """Which torch_npu, PyTorch and CANN go together, the newest of each CANN first."""
    by_cann: dict[str, list[str]] = {}
    for torch_npu, cann in CANN_OF_TORCH_NPU.items():
        by_cann.setdefault(cann, []).append(torch_npu)
    return table(
        ("CANN", "torch_npu, for the PyTorch of the same number"),
        ((cann, ", ".join(names)) for cann, names in by_cann.items()),
    )


def strangers_table() -> str:
    """Other projects' tests with and without the bridge."""
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
    "ascend_limits": partial(ascend_limits_table, "operator", "arguments and pages"),
    "ascend_limits_zh": partial(ascend_limits_table, "算子", "参数与出处"),
    "ascend_rules": ascend_rules_table,
    "strangers": strangers_table,
    "checks": checks_table,
    "examples": examples.table,
    "torch_npu": torch_npu_table,
    "speed": results_page.speed_table,
    "speed_notes": results_page.speed_notes,
    "step_time": results_page.time_sentence,
    "frameworks": results_page.frameworks_table,
    **{name: partial(results_page.stated, name) for name in results_page.STATED},
    "mindspeed_summary": results_page.mindspeed_summary,
    "mindspeed_trained": results_page.mindspeed_trained,
    "reliability": results_page.reliability_table,
    "preprocess": results_page.preprocess_table,
}


def fill(text: str) -> str:
    """``text`` with each marked table regenerated.

    :raises KeyError: a mark names no table.
    """
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def patches_page() -> str:
    """docs/patches.md: every record, by Megatron's module, as a backend without kernels gets it."""
    os.environ["ACCEL_BRIDGE_LOG"] = "quiet"
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

    def cells(name: str) -> Iterator[str]:
        for kernels in (CPU, CUDA, ASCEND):
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
    made = {
        "docs/patches.md": patches_page(),
        "docs/kernels.md": kernels_page(),
        "docs/libraries.md": f"{library_page.page()}\n#{extension_table.page()}",
        "docs/compatibility.md": compatibility_page.page(),
        "docs/commands.md": commands_page(commands_table(), variables_table()),
        "docs/api.md": api_page(),
        "docs/images/compatibility.svg": compatibility_page.chart(),
        **results_page.charts(),
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
