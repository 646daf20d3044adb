"""Activation: select a backend, redirect torch's device layer, arm the patches; and back again."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from packaging.requirements import Requirement
from packaging.version import Version

from accel_bridge.bridge import last_run
from accel_bridge.bridge.selection import Selection, check_processes, select
from accel_bridge.device.backend import device_of, environment_of, local_world_size
from accel_bridge.errors import BridgeError, SelectionError
from accel_bridge.libraries import Shims
from accel_bridge.patching import Patch, PatchEngine, State, Status, armed, choose, made_for
from accel_bridge.patching.host import Host, adapt_arguments
from accel_bridge.plugins.adaptors import AdaptorFinder, Delegation, choose_delegation
from accel_bridge.plugins.candidates import tell_failed
from accel_bridge.plugins.manager import Collected, Plugins, load_plugins
from accel_bridge.process import log
from accel_bridge.process.endings import has_reported
from accel_bridge.process.environment import Settings, unknown_variables
from accel_bridge.process.extras import import_torch, require
from accel_bridge.process.journal import Journal

if TYPE_CHECKING:
    from accel_bridge.device import DeviceRedirection

#: torch imports every installed device package by itself unless this says 0; one that is broken
#: (torch_npu without CANN) then stops ``import torch``. The selected backend imports its own.
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


#: ``module:function`` that is called first of all, in every process that activates. What it returns
#: is None, or takes the plugins and the selection and gives the selection that counts.
BEFORE: Final = "_ACCEL_BRIDGE_BEFORE"


class ActivationError(BridgeError):
    """The bridge was activated from within its activation."""


class VersionError(BridgeError):
    """The framework is of a version for which no patch was ever tested."""


class ImportOrderError(BridgeError):
    """The framework was imported before the bridge."""


@dataclass
class Bridge:
    """An active bridge.

    :param selection: the backend, and why it was chosen.
    :param host: what the patches ask.
    :param engine: the patches and their states.
    :param redirection: where ``torch.cuda`` goes; None when CUDA itself is the device.
    :param environment: the journal of environment variables.
    :param imports: what scripts find in place of adaptors that do no work here.
    :param libraries: which compiled libraries are real, and the shims for others.
    :param training: whether this process trains.
    """

    selection: Selection
    host: Host
    engine: PatchEngine
    redirection: DeviceRedirection | None
    environment: Journal
    libraries: Shims
    imports: AdaptorFinder
    training: last_run.Training
    _announced: bool = False

    @property
    def statuses(self) -> tuple[Status, ...]:
        """Every patch with its state and reason."""
        return self.engine.statuses

    def announce(self) -> None:
        """Show, once, how many patches are in place."""
        if not self._announced:
            self._announced = True
            log.say(self.summary())

    def summary(self) -> str:
        """One line: patches by state."""
        states = [status.state for status in self.statuses]
        applied = sum(state in (State.APPLIED, State.REACHED) for state in states)
        counts = [f"{applied} applied"]
        for state in (State.SKIPPED, State.FAILED, State.REGISTERED):
            if state in states:
                counts.append(f"{states.count(state)} {state.value}")
        return f"patches: {', '.join(counts)} (`accel-bridge patches` lists them)"

    def deactivate(self) -> None:
        """Put back every object, environment variable and module that activation replaced."""
        self.training.end()
        self.imports.remove()
        self.engine.deactivate()
        if self.redirection is not None:
            self.redirection.undo()
        self.libraries.remove()
        self.environment.undo()


_active: Bridge | None = None
#: Held while the bridge is put in place or removed: threads get one bridge. Reentrant, so that a
#: plugin that activates is refused, and does not wait for itself.
_lock: Final = threading.RLock()
_activating = False


def current() -> Bridge | None:
    """The active bridge, or None."""
    return _active


def activate(backend: str | None = None, *, after_import: bool = False) -> Bridge:
    """Make this process's Megatron run on the hardware that is here.

    Activating twice gives the same bridge, in several threads too.

    :param backend: name of a backend; default ``ACCEL_BRIDGE_BACKEND``, else what is found.
    :param after_import: accept that the framework is imported already. Functions are then
        rebound wherever modules hold them, but what it computed at import stays.
    :raises MissingPackage: PyTorch is not installed.
    :raises BrokenTorch: PyTorch is installed, and its import fails.
    :raises ActivationError: a plugin activates the bridge while it is being activated.
    :raises SelectionError: the backend cannot be used here.
    :raises ImportOrderError: the framework was imported before the bridge.
    :raises VersionError: patches exist only for other versions of the framework.
    :raises EnvironmentVariableError: a variable of the layer or of a plugin means nothing.
    """
    with _lock:
        return _activate(backend, after_import)


def _activate(backend: str | None, after_import: bool) -> Bridge:
    """:func:`activate`, for the thread that holds the lock."""
    global _active, _activating
    # Found, not imported: the backend's environment variables come first.
    require("torch")
    if _active is not None:
        if backend is not None and backend != _active.selection.chosen.name:
            raise SelectionError(
                f"backend {backend!r} was asked for while another one is active.",
                evidence=f"active: {_active.selection.chosen.name}",
                next="call accel_bridge.deactivate() first",
            )
        return _active
    if _activating:
        raise ActivationError(
            "The bridge was activated from within its activation.",
            evidence="a plugin, or a module that one imports, activates it",
            next="remove that plugin's `import accel_bridge.auto` or accel_bridge.activate()",
        )
    _activating = True
    try:
        before, _, function = os.environ.get(BEFORE, "").partition(":")
        change = getattr(import_module(before), function)() if before else None
        settings = Settings.from_environ()
        plugins = load_plugins(settings.plugins)
        for line in (*unknown_variables(plugins.variables()), *map(str, plugins.failed)):
            log.warn_once(line)
        plugins.check_variables()
        selection = select(plugins, settings, backend)
        if change is not None:
            selection = change(plugins, selection)
        _check_processes(selection)
        _active = _build(selection, plugins, settings, after_import)
        _provide(_active.host)
    finally:
        _activating = False
    log.say(f"backend {selection.why}")
    atexit.register(_report_at_exit, _active, os.getpid())
    return _active


def is_activating() -> bool:
    """Whether the bridge is being put in place at this moment."""
    return _activating


def deactivate() -> None:
    """Undo :func:`activate`: torch and the framework hold their original objects again."""
    global _active
    with _lock:
        if _active is not None:
            _active.deactivate()
            _provide(None)
            _active = None


def _provide(host: Host | None) -> None:
    """Shims ask :mod:`accel_bridge.kernels.active`, which imports torch."""
    from accel_bridge.kernels import active

    active.provide(host)


def _build(
    selection: Selection, plugins: Plugins, settings: Settings, after_import: bool
) -> Bridge:
    # First of all: patches import torch, and torch reads these variables when it is imported.
    libraries = Shims(settings.libraries, selection.chosen)
    environment = _prepare_environment(selection)
    redirection = imports = training = None
    try:
        import_torch()
        training = last_run.Training()
        adaptors, delegation = _delegation(plugins, selection)
        imported = list(sys.modules)
        libraries.place(delegation.adaptor if delegation else None)
        patches = _patches(plugins, selection, settings, adaptors, delegation)
        after_import = after_import or (delegation is not None and delegation.done)
        if not after_import:
            _check_import_order(patches, imported)
        if delegation is not None:
            delegation.start()
        # An adaptor that took over has its own way to put the device behind torch.cuda.
        spec = device_of(selection.chosen) if delegation is None else None
        if spec is not None:
            from accel_bridge.device import DeviceRedirection

            redirection = DeviceRedirection(spec)
            redirection.apply()
        rules = _items(plugins.argument_rules(selection.chosen))
        host = Host(
            backend=selection.chosen,
            adapt=lambda args: adapt_arguments(args, rules, host),
            say=log.say,
            announce=lambda: bridge.announce(),
            is_shimmed=libraries.serves,
        )
        versions = dict(_items(plugins.versions()))
        chosen = choose(
            patches, lambda name: versions[name] if name in versions else _metadata(name)
        )

        def left_out(id: str) -> str | None:
            covered = delegation.covers(id) if delegation else None
            return settings.patches.excluded(id) or covered

        for id, line in chosen.warnings.items():
            if left_out(id) is None:
                log.warn(line)
        engine = PatchEngine(
            chosen.patches,
            host=host,
            missing_kernel=host.missing_kernel,
            strict=settings.strict,
            selection=lambda id: left_out(id) or chosen.excluded.get(id),
            everywhere=after_import,
            forced=settings.patches.names,
            warn=log.warn,
        )
        imports = AdaptorFinder(_items(plugins.adaptors(selection.chosen)), log.say)
        imports.install()
        bridge = Bridge(
            selection, host, engine, redirection, environment, libraries, imports, training
        )
        engine.activate()
    except BaseException:
        if training is not None:
            training.end()
        if imports is not None:
            imports.remove()
        if redirection is not None:
            redirection.undo()
        libraries.remove()
        environment.undo()
        raise
    return bridge


def _prepare_environment(selection: Selection) -> Journal:
    """Set what must be set before torch runs."""
    journal = Journal()
    for name, value in {_AUTOLOAD: "0", **environment_of(selection.chosen)}.items():
        if name not in os.environ:
            journal.set_item(os.environ, name, value)
    return journal


def _check_processes(selection: Selection) -> None:
    processes = local_world_size()
    check_processes(selection, processes, "started", f"LOCAL_WORLD_SIZE={processes}")
    cores = os.cpu_count() or 1
    if selection.chosen.name == "cpu" and processes > cores:
        log.warn(f"{processes} processes share {cores} cores: each waits for the others")


def _delegation(
    plugins: Plugins, selection: Selection
) -> tuple[list[Delegation], Delegation | None]:
    """The adaptors that were looked at, and the one that takes the device over; says why."""
    found = _items(plugins.delegations(selection.chosen))
    delegation = choose_delegation(found, selection.chosen.name)
    if delegation is not None:
        log.say(f"{delegation.adaptor} takes over: {delegation.why}")
    elif found:
        log.say("own kernels: " + "; ".join(f"{one.adaptor}: {one.why}" for one in found))
    return found, delegation


def _patches(
    plugins: Plugins,
    selection: Selection,
    settings: Settings,
    adaptors: Sequence[Delegation],
    delegation: Delegation | None,
) -> list[Patch]:
    """The patches of every plugin, after a look at whether they were made for this framework."""
    patches = _items(plugins.patches(selection.chosen))
    for line in settings.patches.unknown([patch.id for patch in patches]):
        log.warn(line)
    if delegation is None:  # an adaptor that takes over has a version of its own in mind
        wanted = [patch for patch in patches if settings.patches.excluded(patch.id) is None]
        _check_versions(wanted, dict(_items(plugins.versions())), adaptors)
    return armed(patches)


def _check_versions(
    patches: list[Patch], versions: Mapping[str, str | None], adaptors: Sequence[Delegation]
) -> None:
    """A framework for which not one patch was made would fail later and less clearly.

    :param adaptors: those that could have taken over instead, and why they do not.
    """
    by_name: dict[str, list[Requirement]] = {}
    for patch in patches:
        if patch.requires is not None:
            requirement = Requirement(patch.requires)
            by_name.setdefault(requirement.name, []).append(requirement)
    for name, requirements in by_name.items():
        version = versions[name] if name in versions else _metadata(name)
        if version is None or any(
            requirement.specifier.contains(version, prereleases=True)
            for requirement in requirements
        ):
            _warn_of_newer(name, version, patches)
            continue
        tested = sorted({str(requirement.specifier) for requirement in requirements})
        others = "".join(f"; for {one.adaptor}: {one.next}" for one in adaptors if one.next)
        raise VersionError(
            f"{name} {version} has never been tested with accel_bridge.",
            evidence=[
                f"patches exist for {name} {' or '.join(tested)}",
                *(f"{one.adaptor}: {one.why}" for one in adaptors),
            ],
            next=f'pip install "{name}{tested[-1]}", or ACCEL_BRIDGE_PATCHES=none to redirect '
            f"the device and patch nothing{others}",
        )


def _warn_of_newer(name: str, version: str | None, patches: list[Patch]) -> None:
    """A framework that is newer than every version in the patches' records."""
    known = [number for patch in patches for number in made_for(patch)]
    newest = max(known, key=Version, default=None)
    if version and newest and Version(version) > Version(newest):
        log.warn(
            f"{name} {version} is newer than any that was looked at ({newest}): each patch is "
            "verified when it is applied (`accel-bridge patches`)"
        )


def _check_import_order(patches: list[Patch], imported: list[str]) -> None:
    """:param imported: modules before any was put in place, as they were imported."""
    targets = {patch.target.partition(":")[0] for patch in patches}
    # The first is the nearest to the import that came too early.
    loaded = [name for name in imported if name in targets]
    if loaded:
        raise ImportOrderError(
            f"{loaded[0].partition('.')[0]} was imported before accel_bridge.",
            evidence=f"already imported: {', '.join(loaded[:5])}"
            + (f" and {len(loaded) - 5} more" if len(loaded) > 5 else ""),
            next="restart the kernel, and make `import accel_bridge.auto` its first import"
            if "ipykernel" in sys.modules
            else "make `import accel_bridge.auto` the first import of the script, or start it "
            "with `accel-bridge run SCRIPT`",
        )


def _items(collected: Collected[object]) -> list:  # type: ignore[type-arg]
    """What the plugins gave; one of accel_bridge's own that failed stops the program."""
    for failed in collected.failed:
        if failed.distribution.split(" ")[0] == "accel-bridge":
            raise failed.as_error("nothing works without it")
    tell_failed(collected.failed)
    return [contribution.item for contribution in collected.items]


def _metadata(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except Exception:  # not installed, or its metadata is missing or damaged
        return None


def _report_at_exit(bridge: Bridge, process: int) -> None:
    """At the end of a run, say how many patches were reached (not in forked children).

    After an error nothing follows it.
    """
    if os.getpid() != process or bridge is not _active or has_reported():
        return
    trained = bridge.training.stepped
    last_run.report(bridge.selection.chosen.name, bridge.statuses, trained=trained)
