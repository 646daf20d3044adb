"""``accel-bridge doctor``: what would stop a training here, and the command that fixes it.

What is wrong comes first, in three parts; one line when nothing is.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from accel_bridge.apps.cli._output import add_json_flag, only_stderr, print_json, print_table
from accel_bridge.apps.doctor import STEPS, Result, Training, choose, examine, take_apart
from accel_bridge.errors import EnvironmentVariableError, printable
from accel_bridge.plugins.checks import Finding, Machine, Verdict
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process import launch
from accel_bridge.process.environment import PLUGINS
from accel_bridge.process.log import warn
from accel_bridge.process.parser import Parser, parted, seconds

_LABEL: Final = {Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.FAILS: "would fail"}
_NARROWEST: Final = 30


def exit_status(results: Sequence[Result]) -> int:
    """1 when something would fail."""
    return int(any(result.verdict is Verdict.FAILS for result in results))


def as_json(results: Sequence[Result]) -> dict[str, object]:
    return {
        "verdict": _worst(results).value,
        "would_fail": _count(results, Verdict.FAILS),
        "warnings": _count(results, Verdict.WARNING),
        "checks": [
            {
                "name": result.check.name,
                "subject": result.check.subject,
                "looks_for": result.check.looks_for,
                "verdict": result.verdict.value,
                "broken": result.broken,
                "findings": [
                    {
                        "verdict": finding.verdict.value,
                        "what": finding.what,
                        "evidence": list(finding.evidence),
                        "next": finding.next,
                    }
                    for finding in result.findings
                ],
            }
            for result in results
        ],
    }


def show(results: Sequence[Result], everything: bool) -> None:
    """Print what is wrong, the worst first; ``everything`` also what is well."""
    wanted = [Verdict.FAILS, Verdict.WARNING, *([Verdict.OK] if everything else [])]
    shown = False
    for verdict in wanted:
        for result in results:
            for finding in result.findings:
                if finding.verdict is verdict:
                    _show(result, finding)
                    shown = True
    if shown:
        print()
    print(_summary(results))


def _show(result: Result, finding: Finding) -> None:
    label = _LABEL[finding.verdict]
    _print(f"{label}: {finding.what}", "", "    ")
    for line in finding.evidence:
        _print(line, "  evidence: ", "    ")
    if finding.next:
        # As it is: a command with line ends in it cannot be copied.
        print(printable(f"  next:     {finding.next}"))


def _print(text: str, first: str, others: str) -> None:
    """Wrapped on a terminal, at words; as one line elsewhere."""
    text = printable(text)
    if not sys.stdout.isatty():
        print(first + text)
        return
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines))


def _summary(results: Sequence[Result]) -> str:
    by = collections.Counter(result.verdict for result in results)
    parts = [f"{by[Verdict.OK]} passed"]
    parts += [f"{by[Verdict.WARNING]} with a warning"] if by[Verdict.WARNING] else []
    parts += [f"{by[Verdict.FAILS]} would fail"] if by[Verdict.FAILS] else []
    return f"{len(results)} check{'s' if len(results) != 1 else ''}: {', '.join(parts)}"


def _count(results: Sequence[Result], verdict: Verdict) -> int:
    return sum(finding.verdict is verdict for result in results for finding in result.findings)


def _worst(results: Sequence[Result]) -> Verdict:
    worst_first = (Verdict.FAILS, Verdict.WARNING)
    return next((one for one in worst_first if _count(results, one)), Verdict.OK)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge doctor",
        usage="accel-bridge doctor [OPTIONS] [TORCHRUN OPTIONS] [-- MEGATRON ARGUMENTS]",
        description="Looks for what would stop a training, and says what fixes it. Without "
        "arguments it looks at the machine and what is installed; after -- come the arguments of "
        "a training, or its whole command line (torchrun ... pretrain_gpt.py ...), which is not "
        "started. Ends with status 1 when something would fail; warnings alone end with 0.",
        epilog=launch.EPILOG,
        allow_abbrev=False,
    )
    add_json_flag(parser)
    parser.add_argument("--all", action="store_true", help="also show what is well")
    parser.add_argument("--list", action="store_true", help="list the checks and end")
    parser.add_argument(
        "--only", metavar="NAME,...", action="append", help="run these checks alone"
    )
    parser.add_argument(
        "--skip", metavar="NAME,...", action="append", help="leave these checks out"
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        help="that each import and each program may take (default: up to 90)",
    )
    parser.add_argument("--model", choices=("gpt", "hybrid"), help="as pretrain takes it")
    launch.add_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Examine this machine, and the training that is named."""
    own, after = parted(argv)
    arguments = _parser().parse_args(own)
    with only_stderr():
        plugins = _plugins()
        collected = plugins.checks()
    for failed in collected.failed:
        warn(str(failed))
    checks = [*STEPS, *(found.item for found in collected.items)]
    if arguments.list:
        rows = [[one.name, one.subject, one.looks_for] for one in checks]
        print_table(["check", "about", "looks for"], rows)
        return 0
    training = Training()
    training.take(arguments)
    if "--" in argv:
        take_apart(after, training)
    chosen = choose(
        checks, _names(arguments.only), _names(arguments.skip), training.argv is not None
    )
    environ = {**os.environ, **training.environ}
    os.environ.update(training.environ)  # what reads it itself, in child processes
    with only_stderr(), _progress() as say:
        say("looking for devices")
        results = examine(
            Machine(environ=environ, seconds=arguments.wait), plugins, chosen, training, say
        )
    if arguments.json:
        print_json(lambda: as_json(results))
    else:
        show(results, everything=arguments.all)
    return exit_status(results)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """Tells a terminal what takes long, in one line that is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda line: status.update(escape(line))


def _plugins() -> Plugins:
    """All plugins; a wrong ``ACCEL_BRIDGE_PLUGINS`` is a finding and not the end."""
    choice = None
    with contextlib.suppress(EnvironmentVariableError):
        choice = PLUGINS.read()
    return load_plugins(choice)


def _names(given: Sequence[str] | None) -> list[str]:
    """The names of an option, which may be given several times."""
    return [name.strip() for name in ",".join(given or ()).split(",") if name.strip()]
