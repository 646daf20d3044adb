"""One examination: hardware first, then what the arguments mean, then every check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from accel_bridge.apps.doctor._command import Training
from accel_bridge.apps.doctor._processes import Outcome, call_all
from accel_bridge.bridge.selection import probe_all, select
from accel_bridge.device.backend import Memory, Probe
from accel_bridge.errors import BridgeError
from accel_bridge.plugins.checks import (
    Check,
    Finding,
    Machine,
    Reading,
    Run,
    Verdict,
    milder,
    of_error,
    warning,
)
from accel_bridge.plugins.manager import Plugins
from accel_bridge.process.environment import Settings, did_you_mean
from accel_bridge.process.extras import explained
from accel_bridge.process.parser import CommandLineError

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
    "arguments that the installed framework refuses or changes",
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
    :param say: is told what takes long.
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
    if training.words is not None:
        say("reading the arguments with the installed framework, in a child process")
        seconds = machine.patience(READ_SECONDS)
        read = _ask(partial(_read, plugins, training.words, run, seconds), seconds + 10)
        reading: Reading | None = read.value
        results.append(_of_step(_ARGUMENTS, read, lambda value: value.findings))
        machine = replace(machine, run=replace(run, reading=reading))
    names = {check.name for check in checks}
    results = [result for result in results if result.check.name in names]
    rest = [check for check in checks if check not in STEPS]
    outcomes = call_all(
        {
            check.name: (partial(_findings, check, machine), _limit(check.seconds, wait))
            for check in rest
        }
    )
    results += [_of_step(check, outcomes[check.name], lambda value: value) for check in rest]
    return _once(results)


def _once(results: Iterable[Result]) -> list[Result]:
    """Without what an earlier check found as well."""
    told: set[tuple[str, tuple[str, ...]]] = set()
    kept = []
    for result in results:
        new = [one for one in result.findings if (one.what, one.evidence) not in told]
        told.update((one.what, one.evidence) for one in new)
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


def _read(plugins: Plugins, words: list[str], run: Run, seconds: float) -> Reading:
    """The best reading, with the findings of all."""
    collected = plugins.readings(words, run, seconds)
    readings = [found.item for found in collected.items]
    if not readings:
        raise LookupError("no plugin reads the arguments of a training")
    best = max(readings, key=lambda reading: len(reading.arguments))
    findings = [one for reading in readings for one in reading.findings]
    findings += [warning(str(failed), next="accel-bridge plugins") for failed in collected.failed]
    return replace(best, findings=tuple(findings))
