"""One examination: hardware first, then what the arguments mean, then every check.

A check runs in a process of its own: what one raises, breaks or waits for stops no other. The
processes are forked, so this one must not have imported torch or a driver's library.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import IO, Any, Final

from accel_bridge.apps.doctor._command import Training
from accel_bridge.bridge.selection import probe_all, select
from accel_bridge.device.backend import Memory, Probe
from accel_bridge.errors import BridgeError
from accel_bridge.plugins.checks import (
    Check,
    Finding,
    Machine,
    ParsedArguments,
    Run,
    Verdict,
    milder,
    of_error,
    warning,
)
from accel_bridge.plugins.manager import Plugins
from accel_bridge.process.endings import ASKED
from accel_bridge.process.environment import Settings, did_you_mean
from accel_bridge.process.extras import explained
from accel_bridge.process.parser import CommandLineError
from accel_bridge.process.ranks import be_killed_with_parent

#: Seconds in which a process that has answered ends.
_SETTLE: Final = 1.0
#: Processes at a time: most of them wait.
_WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call in a process of its own ended.

    :param value: what it returned; None where it failed.
    :param error: one line: why there is no value; None where there is one.
    :param details: its traceback, or the last lines that the process wrote to stderr.
    """

    value: Any
    error: str | None = None
    details: str = ""


@dataclass(slots=True)
class _Child:
    process: BaseProcess
    answer: Connection
    log: IO[bytes]
    limit: float
    ends: float


def call_all(
    calls: Mapping[str, tuple[Callable[[], Any], float]],
    ended: Callable[[str], object] = lambda name: None,
) -> dict[str, Outcome]:
    """Call each function in a process of its own, a few at a time.

    :param calls: name -> (function that returns what can be pickled, seconds it may take).
    :param ended: called with the name of each that has ended.
    """
    waiting = list(calls.items())
    running: dict[str, _Child] = {}
    outcomes: dict[str, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < _WORKERS:
                name, (function, seconds) = waiting.pop(0)
                running[name] = _start(function, seconds)
            first = min(child.ends for child in running.values())
            answers = [child.answer for child in running.values()]
            ready = wait(answers, max(0.0, first - time.monotonic()))
            for name, child in list(running.items()):
                if child.answer in ready or child.ends <= time.monotonic():
                    del running[name]
                    outcomes[name] = _outcome(child, child.answer in ready)
                    ended(name)
    finally:
        # A second Ctrl-C must not leave processes behind.
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for child in running.values():
            _end(child)
        signal.signal(signal.SIGINT, usual)
    return {name: outcomes[name] for name in calls}


def _start(function: Callable[[], Any], seconds: float) -> _Child:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    log = tempfile.TemporaryFile()  # noqa: SIM115  (_end closes it)
    process = context.Process(target=_work, args=(function, theirs, log.fileno(), os.getpid()))
    process.start()
    theirs.close()
    return _Child(process, ours, log, seconds, time.monotonic() + seconds)


def _work(function: Callable[[], Any], answer: Connection, log: int, parent: int) -> None:
    """In the child: call, answer, end."""
    os.setpgid(0, 0)  # so that what it starts ends with it
    be_killed_with_parent(parent)
    for number in ASKED:
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdout = sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115
    try:
        outcome = Outcome(function())
    except BaseException as error:  # a SystemExit of a package, too
        line = " ".join(traceback.format_exception_only(error)[-1].split())
        outcome = Outcome(None, f"it raised {line}", traceback.format_exc())
    try:
        answer.send(outcome)
    except Exception as error:
        answer.send(Outcome(None, f"its answer cannot be passed on: {error}"))
    os._exit(0)  # threads that a check has left do not matter


def _outcome(child: _Child, answered: bool) -> Outcome:
    outcome: Outcome | None = None
    if answered:
        with contextlib.suppress(Exception):  # it has died
            outcome = child.answer.recv()
        child.process.join(_SETTLE)
    status = child.process.exitcode
    last = _end(child).strip().splitlines()[-6:]
    if outcome is not None:
        return outcome
    if not answered:
        why = f"it did not end in {child.limit:g} s"
    elif status is not None and status < 0:
        why = f"killed by {signal.Signals(-status).name}"
    else:
        why = "it ended without an answer"
    return Outcome(None, why, "\n".join(last))


def _end(child: _Child) -> str:
    """End the process and all that it has started; what it wrote."""
    assert child.process.pid is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)
    child.process.kill()  # its group may not be there yet
    child.process.join()
    child.answer.close()
    with child.log:
        child.log.seek(0)
        return child.log.read(1 << 20).decode(errors="replace")


#: Seconds for the backends' probes; one imports torch_npu where there is an NPU.
PROBE_SECONDS: Final = 240.0
#: Seconds for the framework to be imported and to read its arguments.
READ_SECONDS: Final = 180.0

_HARDWARE: Final = Check(
    "hardware",
    "Machine",
    "no backend can be used, or the one that was asked for",
    lambda machine: (),  # the examination itself looks, before every check
)
_ARGUMENTS: Final = Check(
    "arguments",
    "Training",
    "arguments that the framework refuses or changes, or that the checkpoint in --load contradicts",
    lambda machine: (),
    with_run=True,
)
#: Checks that are steps of the examination: the others need what they find.
STEPS: Final = (_HARDWARE, _ARGUMENTS)


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what it found.

    :param broken: why the check gave no answer, or None.
    """

    check: Check
    findings: tuple[Finding, ...]
    broken: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst."""
        verdicts = {finding.verdict for finding in self.findings}
        worst_first = (Verdict.FAILS, Verdict.WARNING)
        return next((one for one in worst_first if one in verdicts), Verdict.OK)


@dataclass(frozen=True, slots=True)
class _Hardware:
    """What the probes found, in a form that goes through a pipe."""

    chosen: str | None
    probe: Probe | None
    memory: tuple[Memory, ...]
    findings: tuple[Finding, ...]


def choose(
    checks: Iterable[Check], only: Iterable[str], skip: Iterable[str], with_run: bool
) -> list[Check]:
    """The checks to run.

    :param with_run: a training was named.
    :raises CommandLineError: a name that no check has.
    """
    every = {check.name: check for check in checks}
    only, skip = list(only), list(skip)
    for name in (*only, *skip):
        if name not in every:
            raise CommandLineError(
                f"there is no check {name!r}{did_you_mean(name, every)}",
                evidence=f"checks: {', '.join(sorted(every))}",
                next="accel-bridge doctor --list",
            )
    for name in only:
        if every[name].with_run and not with_run:
            raise CommandLineError(
                f"The check {name!r} needs the arguments of a training.",
                evidence=f"it looks for {every[name].looks_for}",
                next=f"accel-bridge doctor --only {name} -- MEGATRON ARGUMENTS",
            )
    return [
        check
        for check in every.values()
        if (check.name in only or not only)
        and check.name not in skip
        and (with_run or not check.with_run)
    ]


def examine(
    machine: Machine,
    plugins: Plugins,
    checks: Iterable[Check],
    training: Training,
    say: Callable[[str], object] = lambda line: None,
) -> list[Result]:
    """Run the checks that :func:`choose` left.

    :param training: what the command line says of one.
    :param say: called with what takes long.
    """
    checks = list(checks)
    wait = machine.seconds
    found = _ask(partial(_look, machine, plugins), _limit(PROBE_SECONDS, wait))
    results = [_of_step(_HARDWARE, found, lambda value: value.findings)]
    if found.value is not None:
        backends = {one.item.name: one.item for one in plugins.backends()}
        machine = replace(
            machine,
            backend=backends.get(found.value.chosen),
            probe=found.value.probe,
            memory=found.value.memory,
        )
    devices = machine.probe.devices if machine.probe is not None else None
    run = training.run(machine.environ, devices)
    if training.argv is not None:
        say("reading the arguments with the installed framework, in a child process")
        seconds = machine.patience(READ_SECONDS)
        read = _ask(partial(_read, plugins, training.argv, run, seconds), seconds + 10)
        parsed: ParsedArguments | None = read.value
        results.append(_of_step(_ARGUMENTS, read, lambda value: value.findings))
        machine = replace(machine, run=replace(run, parsed=parsed))
    names = {check.name for check in checks}
    results = [result for result in results if result.check.name in names]
    rest = [check for check in checks if check not in STEPS]
    slowest_first = sorted(rest, key=lambda check: -check.seconds)
    waited_for = [check.name for check in slowest_first]

    def ended(name: str) -> None:
        waited_for.remove(name)
        done = len(rest) - len(waited_for)
        say(f"{done} of {len(rest)} checks done; waiting for {', '.join(waited_for[:2])}")

    outcomes = call_all(
        {
            check.name: (partial(_findings, check, machine), _limit(check.seconds, wait))
            for check in slowest_first
        },
        ended,
    )
    results += [_of_step(check, outcomes[check.name], lambda value: value) for check in rest]
    return _once(results)


def _once(results: Iterable[Result]) -> list[Result]:
    """Without what an earlier check found as well."""
    reported: set[tuple[str, tuple[str, ...]]] = set()
    kept = []
    for result in results:
        new = [one for one in result.findings if (one.what, one.evidence) not in reported]
        reported.update((one.what, one.evidence) for one in new)
        kept.append(replace(result, findings=tuple(new)))
    return kept


def _limit(usual: float, wait: float | None) -> float:
    """Seconds for a check: its own, or room for a few steps that take what the user grants."""
    return usual if wait is None else 3 * wait + 2


def _ask(call: Callable[[], object], seconds: float) -> Outcome:
    return call_all({"": (call, seconds)})[""]


def _findings(check: Check, machine: Machine) -> tuple[Finding, ...]:
    try:
        with explained():  # a package that is missing is a finding, and no fault of the check
            found = tuple(check.run(machine))
    except BridgeError as error:
        return (milder(of_error(error)),)
    for one in found:
        if not isinstance(one, Finding):
            raise TypeError(f"check {check.name!r} gave {one!r}, which is no Finding")
    return found


def _of_step(
    check: Check, outcome: Outcome, findings: Callable[..., tuple[Finding, ...]]
) -> Result:
    if outcome.error is None:
        return Result(check, findings(outcome.value))
    broken = warning(
        f"the check {check.name!r} gave no answer: {outcome.error}",
        f"it looks for {check.looks_for}",
        *outcome.details.splitlines()[-6:],
        next=f"accel-bridge doctor --skip {check.name}, or with --wait SECONDS where it is slow",
    )
    return Result(check, (broken,), outcome.error)


def _look(machine: Machine, plugins: Plugins) -> _Hardware:
    """Probe every backend and choose, as a program would."""
    try:
        settings = Settings.from_environ(machine.environ)
    except BridgeError:
        settings = Settings()  # the check of variables says so
    probes = probe_all(plugins)
    findings = []
    for probed in probes:
        # A device that is there and cannot be used; one that is not there is no fault.
        if not probed.probe.available and (probed.probe.devices or probed.probe.remedy):
            findings.append(
                warning(
                    f"{probed.backend.title}: {probed.probe.reason}",
                    *probed.probe.evidence,
                    next=probed.probe.remedy or "accel-bridge backends",
                )
            )
        elif probed.traceback is not None:
            findings.append(
                warning(
                    f"{probed.backend.title}: {probed.probe.reason}",
                    *probed.traceback.strip().splitlines()[-3:],
                    next="accel-bridge backends",
                )
            )
    try:
        selection = select(plugins, settings, probes=probes)
    except BridgeError as error:
        return _Hardware(None, None, (), (of_error(error), *findings))
    chosen = selection.chosen
    probe = next(one.probe for one in probes if one.backend is chosen)
    if chosen.priority <= 0 and settings.backend is None:
        # There is a device, and training would be hundreds of times slower, unless it was hidden.
        findings = [
            one if one.next.startswith("unset ") else replace(one, verdict=Verdict.FAILS)
            for one in findings
        ]
    well = Finding(Verdict.OK, selection.why, probe.evidence)
    return _Hardware(chosen.name, probe, chosen.memory(), (well, *findings))


def _read(plugins: Plugins, argv: list[str], run: Run, seconds: float) -> ParsedArguments:
    """The best answer, with the findings of all."""
    collected = plugins.parsed_arguments(argv, run, seconds)
    answers = [found.item for found in collected.items]
    if not answers:
        raise LookupError("no plugin reads the arguments of a training")
    best = max(answers, key=lambda answer: len(answer.arguments))
    findings = [one for answer in answers for one in answer.findings]
    findings += [warning(str(failed), next="accel-bridge plugins") for failed in collected.failed]
    return replace(best, findings=tuple(findings))
