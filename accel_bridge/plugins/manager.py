"""Plugins: found by entry point, loaded one by one, each failure kept with its traceback.

Nothing here stops because one plugin is broken. A failure becomes fatal when the plugin is
needed: when it was named in ``ACCEL_BRIDGE_PLUGINS`` or its backend was asked for.
"""

from __future__ import annotations

import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import pluggy

from accel_bridge.device.backend import Backend
from accel_bridge.plugins import hookspecs
from accel_bridge.plugins.candidates import FailedPlugin, Plugin, candidates
from accel_bridge.plugins.commands import Command
from accel_bridge.process.environment import PLUGINS, VARIABLES, PluginChoice, Variable
from accel_bridge.process.log import warn

if TYPE_CHECKING:
    from accel_bridge.patching import Patch
    from accel_bridge.patching.host import ArgumentRule, RefusedArgument
    from accel_bridge.plugins.adaptors import Adaptor, Delegation
    from accel_bridge.plugins.checks import Check, ParsedArguments, Run

#: Seconds after which a call that goes on is named.
SLOW: Final = 5.0

_exit: Final[Callable[[int], NoReturn]] = os._exit


@contextmanager
def of_plugin(doing: str, name: str, source: str = "") -> Iterator[None]:
    """Around a call of a third party's code.

    ``os._exit`` in it raises SystemExit, which is kept as the plugin's failure like any error.

    :param doing: what is done, as ``importing``.
    :param source: the plugin's distribution or module.
    """
    where = f" of {source}" if source else ""
    line = (
        f"still {doing} plugin {name!r}{where} after {{}} s; {PLUGINS.name}=-{name} leaves it out"
    )
    done = threading.Event()

    def watch() -> None:
        if not done.wait(SLOW):
            warn(line.format(f"{SLOW:g}"))

    own, thread = os.getpid(), threading.get_ident()

    def refuse(status: int) -> NoReturn:
        # A fork of the plugin's, a thread, or whoever kept this function: they may.
        if done.is_set() or os.getpid() != own or threading.get_ident() != thread:
            _exit(status)
        raise SystemExit(f"it called os._exit({status})")

    before: Any = os._exit
    os._exit = refuse
    threading.Thread(target=watch, name="accel_bridge plugin", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        os._exit = before


Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Contribution(Generic[Item_co]):
    """One thing that a plugin's hook returned, with the plugin's name."""

    plugin: str
    item: Item_co


@dataclass(frozen=True, slots=True)
class Collected(Generic[Item_co]):
    """What one hook gave over all plugins, and the plugins whose hook raised."""

    items: tuple[Contribution[Item_co], ...]
    failed: tuple[FailedPlugin, ...]


@dataclass(frozen=True)
class Plugins:
    """The plugins of this process. What they declare is asked for once, when it is needed.

    :param manager: pluggy's manager with the plugins that were registered.
    :param loaded: those plugins, built-in ones first, then by distribution and name.
    :param not_loaded: plugins that could not be imported or registered.
    """

    manager: pluggy.PluginManager
    loaded: tuple[Plugin, ...]
    not_loaded: tuple[FailedPlugin, ...]

    @property
    def failed(self) -> tuple[FailedPlugin, ...]:
        """Those not loaded, and those whose backends, variables or commands cannot be had."""
        declared = (self._backends, self._variables, self._commands)
        return (*self.not_loaded, *(failed for one in declared for failed in one.failed))

    def backends(self) -> tuple[Contribution[Backend], ...]:
        """Every backend, with its plugin's name; names are unique."""
        return self._backends.items

    def variables(self) -> tuple[Variable[Any], ...]:
        """The plugins' environment variables; names are unique, the layer's own included."""
        return tuple(found.item for found in self._variables.items)

    def commands(self) -> Collected[Command]:
        """The commands of ``accel-bridge``; names are unique."""
        return self._commands

    @cached_property
    def _backends(self) -> Collected[Backend]:
        return self._declared("backend", Backend)

    @cached_property
    def _variables(self) -> Collected[Variable[Any]]:
        return self._declared("variable", Variable)

    @cached_property
    def _commands(self) -> Collected[Command]:
        return self._declared("command", Command)

    def check_variables(self) -> None:
        """Read the plugins' variables, so that a wrong value stops now and not half-way.

        :raises EnvironmentVariableError: a value means nothing.
        """
        for variable in self.variables():
            variable.read()

    def patches(self, backend: Backend) -> Collected[Patch]:
        """The patches of every plugin for this backend."""
        from accel_bridge.patching import Patch

        return self._collect("accel_bridge_patches", _is_a(Patch), backend=backend)

    def versions(self) -> Collected[tuple[str, str | None]]:
        """Versions of distributions that plugins know better than their metadata."""
        return self._collect("accel_bridge_versions", _is_version)

    def argument_rules(self, backend: Backend) -> Collected[ArgumentRule | RefusedArgument]:
        """The argument rules of every plugin for this backend."""
        from accel_bridge.patching.host import ArgumentRule, RefusedArgument

        fits = _is_a(ArgumentRule, RefusedArgument)
        return self._collect("accel_bridge_argument_rules", fits, backend=backend)

    def delegations(self, backend: Backend) -> Collected[Delegation]:
        """Whether adaptors of other projects take this backend's device over."""
        from accel_bridge.plugins.adaptors import Delegation

        return self._collect("accel_bridge_delegations", _is_a(Delegation), backend=backend)

    def adaptors(self, backend: Backend) -> Collected[Adaptor]:
        """Packages that scripts import, and that do not do their work on this backend."""
        from accel_bridge.plugins.adaptors import Adaptor

        return self._collect("accel_bridge_adaptors", _is_a(Adaptor), backend=backend)

    def checks(self) -> Collected[Check]:
        """The checks of ``accel-bridge doctor``; names are unique."""
        from accel_bridge.plugins.checks import Check

        return self._declared("check", Check)

    def parsed_arguments(
        self, argv: list[str], run: Run, seconds: float
    ) -> Collected[ParsedArguments]:
        """What a training's arguments mean to each plugin's framework."""
        from accel_bridge.plugins.checks import ParsedArguments

        return self._collect(
            "accel_bridge_parsed_arguments",
            _is_a(ParsedArguments),
            argv=argv,
            run=run,
            seconds=seconds,
        )

    def _declared(self, noun: str, kind: type[Any]) -> Collected[Any]:
        """What the hook for ``noun`` gives, by unique names; a second one of a name failed."""
        hook = f"accel_bridge_{noun}s"
        collected: Collected[Any] = self._collect(hook)
        owners = {variable.name: "accel_bridge" for variable in VARIABLES}
        kept, failed = [], list(collected.failed)
        for found in collected.items:
            plugin = self._named[found.plugin]
            try:
                name = _checked_name(found.item, kind)
            except TypeError as error:
                failed.append(plugin.failed(hook, error))
                continue
            if name in owners:
                # Whoever asks for a backend by its name must learn that two plugins claim it.
                of, stage = (name, "duplicate") if kind is Backend else (plugin.name, hook)
                taken = f"the {noun} name {name!r} is taken by {owners[name]}"
                unused = f"that of plugin {plugin.name!r} ({plugin.source}) is not used"
                failed.append(replace(plugin, name=of).failed(stage, f"{taken}; {unused}"))
                continue
            owners[name] = f"plugin {plugin.name!r} ({plugin.source})"
            kept.append(found)
        return Collected(tuple(kept), tuple(failed))

    def _collect(
        self, hook: str, fits: Callable[[Any], bool] | None = None, **arguments: object
    ) -> Collected[Item]:
        """Call ``hook`` plugin by plugin, so that one that raises does not stop the others.

        :param fits: whether an element of the returned list is what the hook must return.
        """
        items: list[Contribution[Item]] = []
        failed: list[FailedPlugin] = []
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        # pluggy keeps them in the order of registration and calls the last one first.
        for found in caller.get_hookimpls():
            plugin = self._named[found.plugin_name]
            call = of_plugin(f"calling {hook} of", plugin.name, plugin.distribution)
            try:
                with nullcontext() if plugin.builtin else call:
                    given: Any = found.function(*(arguments[word] for word in found.argnames))
                    given = _checked_items(given, fits)
                    items += [Contribution(plugin.name, item) for item in given]
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever a vendor's package raises
                failed.append(plugin.failed(hook, error))
        return Collected(tuple(items), tuple(failed))

    @cached_property
    def _named(self) -> dict[str, Plugin]:
        return {plugin.name: plugin for plugin in self.loaded}

    @cached_property
    def requested(self) -> set[str]:
        """Names of the loaded plugins that the user named; the program stops where one fails."""
        return {plugin.name for plugin in self.loaded if plugin.requested}


def load_plugins(choice: PluginChoice | None = None) -> Plugins:
    """Load the installed plugins and those that the user named, less those left out.

    :param choice: the value of ``ACCEL_BRIDGE_PLUGINS``; None for nothing extra.
    :raises PluginError: accel_bridge itself is not installed, so not even its built-in backends
        can be found. A plugin that fails raises nothing: it is in ``not_loaded``.
    """
    choice = choice or PluginChoice()
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    loaded: dict[str, Plugin] = {}
    failed: list[FailedPlugin] = []
    for plugin in candidates(choice, failed):
        first = loaded.get(plugin.name)
        if first:
            taken = f"the name {plugin.name!r} is taken by {first.source}"
            unused = f"the one of {plugin.source} was not loaded"
            failed.append(plugin.failed("duplicate", f"{taken}; {unused}"))
            continue
        failure = _register(manager, plugin)
        if failure:
            failed.append(failure)
        else:
            loaded[plugin.name] = plugin
    return Plugins(manager, tuple(loaded.values()), tuple(failed))


def _register(manager: pluggy.PluginManager, plugin: Plugin) -> FailedPlugin | None:
    """Import and register one plugin; its failure, or None."""
    try:
        with (
            nullcontext() if plugin.builtin else of_plugin("importing", plugin.name, plugin.source)
        ):
            module = plugin.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a vendor's package raises
        return plugin.failed("import", error)
    try:
        manager.register(module, plugin.name)
        # Raises for a function marked as the implementation of a hook that does not exist.
        manager.check_pending()
        callers = manager.get_hookcallers(module) or []
        if not callers:
            raise ValueError(
                f"{plugin.module} implements no hook; mark its functions with "
                "@accel_bridge.plugin.hookimpl"
            )
        if any(_is_wrapper(found) for caller in callers for found in caller.get_hookimpls()):
            raise ValueError(f"{plugin.module} has a hook wrapper; each plugin is called alone")
    except Exception as error:
        if manager.get_plugin(plugin.name) is not None:
            manager.unregister(name=plugin.name)
        return plugin.failed("registration", error)
    return None


def _is_wrapper(implementation: pluggy.HookImpl) -> bool:
    return implementation.wrapper or implementation.hookwrapper


def _checked_name(item: Any, kind: type[Any]) -> str:
    """The name of what a plugin declares, after a look at what it must have."""
    if not isinstance(item, kind):
        raise TypeError(f"{reprlib.repr(item)} is not an accel_bridge.plugin.{kind.__name__}")
    needed: dict[str, type] = {"name": str}
    if kind is Backend:
        needed |= {"title": str, "priority": int}
    for attribute, wanted in needed.items():
        if not isinstance(getattr(item, attribute, None), wanted):
            raise TypeError(
                f"{type(item).__qualname__}.{attribute} must be of type {wanted.__name__}"
            )
    name: str = item.name
    return name


def _checked_items(given: Any, fits: Callable[[Any], bool] | None) -> list[Any]:
    """What a hook returned, as a list; None is an empty one."""
    if given is None:
        return []
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"it returned {reprlib.repr(given)}, which is no list")
    items = list(given)
    for item in items:
        if fits is not None and not fits(item):
            raise TypeError(f"it returned {reprlib.repr(item)}, which docs/api.md does not name")
    return items


def _is_a(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda item: isinstance(item, kinds)


def _is_version(item: Any) -> bool:
    """A distribution's name and version, or None."""
    return (
        isinstance(item, tuple)
        and len(item) == 2
        and isinstance(item[0], str)
        and isinstance(item[1], str | None)
    )
