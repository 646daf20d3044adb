"""``accel-bridge patches``: every patch against the installed framework, and why it exists."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_json,
    print_table,
)
from accel_bridge.bridge import last_run
from accel_bridge.bridge.activation import Bridge, activate
from accel_bridge.bridge.selection import select
from accel_bridge.errors import BridgeError, printable
from accel_bridge.patching import (
    Fit,
    Patch,
    SourceTree,
    State,
    Verdict,
    against_tree,
    against_version,
    draft,
    known_versions,
)
from accel_bridge.patching.variants import is_version
from accel_bridge.plugins.candidates import tell_failed
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process.endings import ending_at_once, of_uncaught
from accel_bridge.process.environment import Settings, did_you_mean
from accel_bridge.process.log import say, warn
from accel_bridge.process.parser import Parser
from accel_bridge.run import run as run_script


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge patches",
        description="Imports the modules that patches change and lists each patch with its "
        "state, the reason for that state, and why the patch exists. With a script, which is run "
        "as `accel-bridge run` does, the states are those at its end: which patches it reached. "
        "Exit status 1 when a patch failed or what it changes cannot be imported, else the "
        "script's.",
    )
    add_json_flag(parser)
    parser.add_argument(
        "--against",
        metavar="VERSION|PATH",
        help="judge the patches against another Megatron instead, which is not imported: a version "
        "that they know, or the path of a checkout, a site-packages directory or a wheel; exit "
        "status 1 when one does not fit",
    )
    parser.add_argument(
        "--draft",
        action="store_true",
        help="with --against PATH: for each patch that does not fit, where its target went, both "
        "texts, and the words of a record that would fit",
    )
    parser.add_argument(
        "--last",
        action="store_true",
        help="how the patches of your last finished training ended, whatever started it",
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ARGUMENTS",
        help="a script, or -- -m MODULE, and its arguments; what it prints goes to stderr",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Apply every patch in this process, run the script if there is one, and list them."""
    arguments = _parser().parse_args(argv)
    script: list[str] = arguments.script
    if script[:1] == ["--"]:
        script = script[1:]
    if arguments.last:
        return _show_last(arguments, script)
    if script and arguments.against is None:
        return _run_and_list(arguments, script)
    with ending_at_once():
        if arguments.against is not None:
            return _run_against(arguments)
        return _run_and_list(arguments, script)


def _run_and_list(arguments: argparse.Namespace, script: list[str]) -> int:
    status = 0
    with only_stderr():
        if script:
            status = _run_script(script)
        bridge = activate()
        broken = import_targets(bridge)
        rows = patch_rows(bridge)
    if arguments.json:
        print_json(lambda: {"backend": bridge.selection.chosen.name, "patches": rows})
    else:
        _print(rows)
    if broken:
        raise BridgeError(
            f"{len(broken)} modules that patches change are here and cannot be imported.",
            evidence=broken[:5],
            next=f"{sys.executable} -c 'import {broken[0].partition(':')[0]}' shows the first "
            "alone; fix what it names, or reinstall its package",
            exit_code=1,
        )
    return 1 if any(row["state"] == State.FAILED.value for row in rows) else status


def _print(rows: Iterable[dict[str, Any]]) -> None:
    """The patches, with why each is not in place, or why it exists."""
    in_place = (State.APPLIED.value, State.REACHED.value)
    table = [
        [
            *(row[name] for name in ("id", "state", "target")),
            row["why"] if row["state"] in in_place else row["reason"] or row["why"],
        ]
        for row in rows
    ]
    print_table(["patch", "state", "target", "reason, or why it exists"], table)


def _show_last(arguments: argparse.Namespace, script: list[str]) -> int:
    """List the patches of the last run as its rank 0 noted them."""
    if script or arguments.against is not None:
        raise BridgeError(
            "--last looks at a run that has ended.",
            evidence="a script or --against is given beside it",
            next="leave out one of the two",
        )
    document = last_run.read()
    if arguments.json:
        print_json(lambda: document)
    else:
        print(printable(f"{document['command']}, ended {document['ended']}\n", keep="\n"))
        _print(document["patches"])
    return int(any(row["state"] == State.FAILED.value for row in document["patches"]))


def _run_against(arguments: argparse.Namespace) -> int:
    """Judge every patch against sources that are not imported."""
    if arguments.script:
        raise BridgeError(
            "--against imports nothing, so it runs no script.",
            evidence=f"script: {' '.join(arguments.script)}",
            next="leave out one of the two",
        )
    with only_stderr():
        patches, plugins = _collected()
        versions = known_versions(patches)
        if arguments.draft and arguments.against in versions:
            raise BridgeError(
                "--draft compares texts, and a version's name brings none.",
                evidence=f"--against {arguments.against}",
                next="give the path of a checkout or a wheel of it",
            )
        path = Path(arguments.against)
        if arguments.against in versions:
            verdicts, tree = against_version(patches, arguments.against), None
        else:
            tree = _tree(arguments.against, patches, versions)
            found = _versions_at(path, plugins)
            verdicts = against_tree(patches, tree, found.get)
    counts = Counter(verdict.fit for verdict in verdicts)
    if arguments.json:
        rows = [
            {
                "id": verdict.patch.id,
                "kind": verdict.patch.kind.value,
                "target": verdict.patch.target,
                "fit": verdict.fit.value,
                "detail": verdict.detail,
                "place": verdict.place,
            }
            for verdict in verdicts
        ]
        print_json(lambda: {"against": arguments.against, "patches": rows})
    else:
        cells = [[v.patch.id, v.fit.value, v.place, v.detail] for v in verdicts]
        print_table(["patch", "fit", "place", "detail"], cells)
        summary = ", ".join(f"{count} {fit.value}" for fit, count in counts.items())
        print(f"\n{len(verdicts)} patches: {summary}")
        if arguments.draft and tree is not None:
            _print_drafts(verdicts, tree, found, plugins)
    return 0 if set(counts) <= {Fit.OK, Fit.NEEDLESS} else 1


def _collected() -> tuple[list[Patch], Plugins]:
    """The patches of the chosen backend, and the plugins that they come from."""
    settings = Settings.from_environ()
    plugins = load_plugins(settings.plugins)
    collected = plugins.patches(select(plugins, settings).chosen)
    tell_failed(collected.failed)
    return [contribution.item for contribution in collected.items], plugins


def _tree(against: str, patches: Sequence[Patch], versions: Collection[str]) -> SourceTree:
    """The sources at a path."""
    path = Path(against)
    if not os.path.exists(path):  # which no name is too long for
        raise BridgeError(
            f"there is no version and no path {against!r}{did_you_mean(against, list(versions))}",
            evidence=f"versions that the patches know: {', '.join(versions)}",
            next="give one of them, or the path of a checkout, of site-packages or of a wheel "
            "(pip download --no-deps megatron-core==VERSION)",
        )
    return SourceTree(path, {patch.module.partition(".")[0] for patch in patches})


def _print_drafts(
    verdicts: Iterable[Verdict],
    tree: SourceTree,
    found: Mapping[str, str | None],
    plugins: Plugins,
) -> None:
    """What a maintainer begins with, for each patch that does not fit."""
    here = _versions(plugins)
    for verdict in verdicts:
        if verdict.fit in (Fit.OK, Fit.NEEDLESS):
            continue
        package = verdict.patch.module.partition(".")[0]
        installed = _installed(package)
        if installed is None:
            warn(f"{package} is not installed, so there is nothing to compare with")
            continue
        requires = verdict.patch.requires
        name = Requirement(requires).name if requires else next(iter(found), package)
        version, own = found.get(name) or "NEXT", here.get(name) or ""
        both = is_version(version) and is_version(own)
        earlier = both and Version(version) < Version(own)
        text = draft(verdict, installed, tree, version, name, earlier=earlier)
        print("\n" + printable(text, keep="\n\t"))


@cache
def _installed(package: str) -> SourceTree | None:
    """The sources that an import would find, without importing them."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return SourceTree(Path(places[0]).parent, {package}) if places else None


def _versions_at(path: Path, plugins: Plugins) -> dict[str, str | None]:
    """Distribution -> version of what is at a path; plugins look into a directory."""
    if path.is_file():
        with contextlib.suppress(InvalidWheelFilename):
            name, version, *_ = parse_wheel_filename(path.name)
            return {name: str(version)}
        return {}
    # A package in place of the directory that holds it is also a path that --against takes.
    directories = [str(path.resolve()), str(path.resolve().parent)]
    sys.path[:0] = directories
    try:
        return _versions(plugins)
    finally:
        del sys.path[: len(directories)]


def _versions(plugins: Plugins) -> dict[str, str | None]:
    """Distribution -> version of what an import would find."""
    return dict(contribution.item for contribution in plugins.versions().items)


def _run_script(argv: list[str]) -> int:
    try:
        run_script(argv)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


def import_targets(bridge: Bridge) -> list[str]:
    """Import every module that a patch changes, so that its patches are verified and applied.

    :returns: a line for each whose import fails. One that this version of the framework does not
        have is no failure.
    """
    failed, missing = [], set()
    patches = [status.patch for status in bridge.statuses]
    expected = {
        status.patch.module
        for status in bridge.statuses
        if not status.patch.optional and status.state is not State.SKIPPED
    }
    for module in sorted({patch.module for patch in patches}):
        try:
            importlib.import_module(module)
        except BridgeError:  # a patch in strict mode
            raise
        except (Exception, SystemExit) as error:  # what a module raises is its own choice
            if (explained := of_uncaught(error)) is not None:
                raise explained from error
            line = " ".join(f"{type(error).__name__}: {error}".split())
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            is_absent = absent is not None and f"{module}.".startswith(f"{absent}.")
            if module in expected and absent == module.partition(".")[0]:
                missing.add(absent)
            elif module in expected or not is_absent:
                warn(f"{module} cannot be imported, its patches stay registered: {line}")
            if not is_absent:
                failed.append(f"{module}: {line}")
    if missing:
        say(f"not installed, patches stay registered: {', '.join(sorted(missing))}")
    return failed


def patch_rows(bridge: Bridge) -> list[dict[str, Any]]:
    """What is shown of each patch."""
    of_patch = ("target", "why", "upstream", "removed_when", "loses", "requires")
    return [
        {
            "id": status.patch.id,
            "state": status.state.value,
            "reason": status.reason,
            "kind": status.patch.kind.value,
            **{name: getattr(status.patch, name) for name in of_patch},
            "aliases": status.aliases,
            "error": status.error,
        }
        for status in bridge.statuses
    ]
