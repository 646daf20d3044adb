"""Which backend is used, and why.

1. The backend that was asked for, or an error. Never another backend.
2. Evidence of a device, as the probes found it. An installed package is not evidence.
3. The backend that needs no device, saying why.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

from accel_bridge.device.backend import Backend, Probe, ProbedBackend
from accel_bridge.errors import BridgeError, SelectionError
from accel_bridge.plugins.candidates import ASKED_FOR, FailedPlugin, tell_failed
from accel_bridge.plugins.manager import Contribution, Plugins, load_plugins, of_plugin
from accel_bridge.process.environment import BACKEND, Settings, did_you_mean

How = Literal["override", "evidence", "fallback"]

_SHOW_PROBES = "`accel-bridge backends` shows what every probe found"


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen backend.

    :param chosen: the backend.
    :param why: one sentence, shown to the user.
    :param how: ``override`` (asked for), ``evidence`` (a device was found) or ``fallback``.
    :param probes: what was probed: every backend, or only the requested one.
    """

    chosen: Backend
    why: str
    how: How
    probes: tuple[ProbedBackend, ...]


def probe(contribution: Contribution[Backend]) -> ProbedBackend:
    """Probe one backend; a probe that raises counts as "not available", traceback kept."""
    backend, plugin = contribution.item, contribution.plugin
    try:
        own = type(backend).__module__.startswith("accel_bridge.")
        with nullcontext() if own else of_plugin("probing for the backend of", plugin):
            found = backend.probe()
        if not isinstance(found, Probe):
            raise TypeError(f"{type(backend).__qualname__}.probe() returned {found!r}, not a Probe")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a vendor's package raises
        line = " ".join(traceback.format_exception_only(error)[-1].split())
        text = "".join(traceback.format_exception(error))
        return ProbedBackend(backend, plugin, Probe(False, f"its probe raised {line}"), text)
    return ProbedBackend(backend, plugin, found)


def probe_all(plugins: Plugins) -> tuple[ProbedBackend, ...]:
    """Probe every backend, highest priority first."""
    backends = sorted(plugins.backends(), key=lambda found: -found.item.priority)
    return tuple(probe(found) for found in backends)


def select(
    plugins: Plugins,
    settings: Settings,
    requested: str | None = None,
    probes: tuple[ProbedBackend, ...] | None = None,
) -> Selection:
    """Choose the backend.

    :param requested: name of a backend; takes precedence over ``ACCEL_BRIDGE_BACKEND``.
    :param probes: what :func:`probe_all` found, if it was called already.
    :raises SelectionError: the requested backend is unknown or has no device, or no backend was
        requested and none can be used.
    :raises PluginError: a plugin that is needed has failed.
    """
    tell_failed(failed for failed in plugins.failed if failed.requested)
    if requested:
        asked_by = f"the argument {requested!r}"
        return _override(plugins, requested.strip().lower(), asked_by, probes)
    if settings.backend:
        asked_by = f"{BACKEND.name}={settings.backend}"
        return _override(plugins, settings.backend, asked_by, probes)
    return _by_evidence(plugins, probe_all(plugins) if probes is None else probes)


def select_here(requested: str | None = None, environ: Mapping[str, str] = os.environ) -> Selection:
    """What a program would get: :func:`select` with the installed plugins and the environment.

    :raises BridgeError: as :func:`select`, or for a variable that means nothing.
    """
    settings = Settings.from_environ(environ)
    return select(load_plugins(settings.plugins), settings, requested)


def check_processes(selection: Selection, processes: int, how: str, evidence: str) -> None:
    """Refuse more processes than devices, which would hang in the first collective.

    :param how: what happened to the processes: ``started`` or ``asked for``.
    :param evidence: where their number comes from.
    :raises SelectionError: there are more processes than devices.
    """
    for probed in selection.probes:
        devices = probed.probe.devices
        if probed.backend is selection.chosen and devices is not None and processes > devices:
            raise SelectionError(
                f"{processes} processes were {how} on this machine, which has {devices} "
                f"{selection.chosen.title} device{'s' if devices != 1 else ''}.",
                evidence=(evidence, *probed.probe.evidence),
                next=f"use --nproc-per-node {devices}, or {BACKEND.name}=cpu",
            )


def _override(
    plugins: Plugins, name: str, asked_by: str, probes: tuple[ProbedBackend, ...] | None
) -> Selection:
    found = next((found for found in plugins.backends() if found.item.name == name), None)
    for failed in plugins.failed:
        # A plugin may provide the backend and fail at something else.
        if failed.name == name and (found is None or failed.stage == "duplicate"):
            raise failed.as_error(f"{asked_by} asks for it")
    if found is None:
        raise _unknown(plugins, name, asked_by)
    if probes is None:
        probed = probe(found)
        probes = (probed,)
    else:
        probed = next(known for known in probes if known.backend is found.item)
    if not probed.probe.available:
        raise _absent(probed, asked_by)
    why = f"{name}: asked for by {asked_by}; {probed.probe.reason}"
    return Selection(found.item, why, "override", probes)


def _unknown(plugins: Plugins, name: str, asked_by: str) -> SelectionError:
    names = [found.item.name for found in plugins.backends()]
    return SelectionError(
        f"there is no backend {name!r}{did_you_mean(name, names)}",
        evidence=[
            f"asked for by {asked_by}",
            f"known backends: {', '.join(names) or 'none'}",
            *(str(failed) for failed in plugins.failed),
        ],
        next=f"{_no_longer(asked_by, 'a known name')} to let the devices found decide; "
        "`accel-bridge plugins` shows where backends come from",
    )


def _no_longer(asked_by: str, other: str = "") -> str:
    """How to ask for no backend, or for ``other``."""
    if BACKEND.name in asked_by:
        return f"set {BACKEND.name} to {other}, or unset it" if other else f"unset {BACKEND.name}"
    return f"give {other}, or leave out {asked_by}" if other else f"leave out {asked_by}"


def _absent(probed: ProbedBackend, asked_by: str) -> BridgeError:
    fix = f"{probed.probe.remedy}; or " if probed.probe.remedy else ""
    return SelectionError(
        f"backend {probed.backend.name!r} was asked for by {asked_by} and cannot be used: "
        f"{probed.probe.reason}",
        evidence=[*probed.probe.evidence, *(probed.traceback or "").splitlines()]
        or "its probe gave no further evidence",
        next=f"{fix}{_no_longer(asked_by)} to let the devices found decide; {_SHOW_PROBES}",
    )


def _by_evidence(plugins: Plugins, probes: tuple[ProbedBackend, ...]) -> Selection:
    for probed in probes:
        if probed.traceback and probed.plugin in plugins.requested:
            raise FailedPlugin(
                probed.plugin, "", "probe", probed.probe.reason, probed.traceback
            ).as_error(ASKED_FOR)
    available = [probed for probed in probes if probed.probe.available]
    if not available:
        raise _nothing(probes, plugins.failed)
    best, *others = available
    if best.backend.priority <= 0:
        return Selection(best.backend, _why_fallback(best, probes, plugins), "fallback", probes)
    why = f"{best.backend.name}: {best.probe.reason}"
    for other in others:
        if other.backend.priority > 0:
            why += (
                f"; {other.backend.name} is available too ({other.probe.reason}), but "
                f"{best.backend.name} takes precedence (priority {best.backend.priority} against "
                f"{other.backend.priority}); {BACKEND.name}={other.backend.name} selects the other"
            )
    return Selection(best.backend, why, "evidence", probes)


def _why_fallback(best: ProbedBackend, probes: tuple[ProbedBackend, ...], plugins: Plugins) -> str:
    reasons = [
        f"{probed.backend.name}: {probed.probe.reason}"
        for probed in probes
        if probed.backend.priority > 0
    ]
    reasons += [str(failed) for failed in plugins.failed]
    name = best.backend.name
    return f"{name}: no accelerator can be used ({'; '.join(reasons) or 'no plugin provides one'})"


def _nothing(probes: tuple[ProbedBackend, ...], failed: tuple[FailedPlugin, ...]) -> SelectionError:
    evidence = [f"{probed.backend.name}: {probed.probe.reason}" for probed in probes]
    evidence += [str(plugin) for plugin in failed]
    return SelectionError(
        "no backend can be used, not even the CPU",
        evidence=evidence or "no plugin provides a backend",
        next=f"run `accel-bridge plugins` to check whether ACCEL_BRIDGE_PLUGINS excludes them; "
        f"{_SHOW_PROBES}",
    )
