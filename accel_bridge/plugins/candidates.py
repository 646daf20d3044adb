"""Plugins that may be loaded: those installed and those that the user named, in their order;
and one plugin: it was loaded, or it failed and its traceback is kept.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Final

from accel_bridge.errors import PluginError
from accel_bridge.plugins import hookspecs
from accel_bridge.plugins.installed import entry_points_of, identity
from accel_bridge.process.environment import PLUGINS, PluginChoice, did_you_mean
from accel_bridge.process.log import is_debug, warn, warn_once

#: Why a plugin that was named is needed.
ASKED_FOR: Final = f"{PLUGINS.name} asks for it"

#: Characters of an error that are shown: a plugin may quote whatever it has.
_MOST_SHOWN: Final = 1000


@dataclass(frozen=True, slots=True)
class FailedPlugin:
    """A plugin, or one of its hooks, that failed.

    :param name: as in :class:`Plugin`.
    :param distribution: as in :class:`Plugin`.
    :param stage: ``metadata``, ``import``, ``registration``, ``duplicate``, ``probe`` or the name
        of the hook that raised.
    :param error: the error in one line.
    :param traceback: the whole traceback; None for a duplicate, where nothing was raised.
    :param requested: the user named it in ``ACCEL_BRIDGE_PLUGINS``.
    """

    name: str
    distribution: str
    stage: str
    error: str
    traceback: str | None = None
    requested: bool = False

    def __str__(self) -> str:
        source = f" ({self.distribution})" if self.distribution else ""
        return f"plugin {self.name!r}{source} failed at {self.stage}: {self.error}"

    def as_error(self, why_needed: str) -> PluginError:
        """The error to raise when this plugin is needed after all."""
        shown = (self.traceback or "").splitlines() if is_debug() else []
        exclude = self.distribution.split(" ")[0] if self.stage == "duplicate" else self.name
        return PluginError(
            f"plugin {self.name!r} failed, and {why_needed}",
            evidence=[str(self), *shown],
            next=f"fix or uninstall it, or leave it out with {PLUGINS.name}=-{exclude}; "
            "`accel-bridge plugins` shows all plugins, ACCEL_BRIDGE_LOG=debug the traceback",
        )


def tell_failed(failures: Iterable[FailedPlugin]) -> None:
    """Say what failed.

    :raises PluginError: for the first that the user asked for.
    """
    for failed in failures:
        if failed.requested:
            raise failed.as_error(ASKED_FOR)
        warn(str(failed))


#: The distribution whose plugins are the built-in ones; they are loaded first.
DISTRIBUTION: Final = "accel-bridge"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that was found.

    :param name: name of its entry point, or its module path when it was named by that.
    :param distribution: name and version of the package that brings it; empty for a module path.
    :param module: the entry point's value, or the module path.
    :param builtin: it comes with accel_bridge itself.
    :param requested: the user named it in ``ACCEL_BRIDGE_PLUGINS``.
    """

    name: str
    distribution: str
    module: str
    builtin: bool
    requested: bool = False

    @property
    def source(self) -> str:
        """Where it comes from, in a message."""
        return self.distribution or self.module

    def is_named(self, word: str) -> bool:
        """Whether a word of ``ACCEL_BRIDGE_PLUGINS`` means this plugin."""
        names = {self.name, self.module, self.module.replace(":", "."), self.distribution}
        return word in names | {self.distribution.split(" ")[0]}

    def load(self) -> object:
        """Import it."""
        if not self.distribution:
            return import_module(self.module)
        return EntryPoint(self.name, self.module, hookspecs.PROJECT).load()

    def failed(self, stage: str, error: BaseException | str) -> FailedPlugin:
        """What an error, or a reason in words, means; see :class:`FailedPlugin`."""
        text = None
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception(error))
            # Not str(error), which may raise another.
            line = " ".join(traceback.format_exception_only(error)[-1].split())
            error = line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}..."
        return FailedPlugin(self.name, self.distribution, stage, error, text, self.requested)


def candidates(choice: PluginChoice, failed: list[FailedPlugin]) -> list[Plugin]:
    """The plugins to load in their order, less those that the user left out.

    :param failed: gets the distributions whose metadata cannot be read.
    :raises PluginError: accel_bridge itself is not among them.
    """
    found = _ordered(choice, failed)
    # A word that excludes nothing is reported.
    for word in choice.excluded:
        if not any(plugin.is_named(word) for plugin in found):
            names = [plugin.name for plugin in found]
            warn_once(f"{PLUGINS.name}=-{word} leaves out nothing{did_you_mean(word, names)}")
    return [
        plugin for plugin in found if not any(plugin.is_named(word) for word in choice.excluded)
    ]


def _ordered(choice: PluginChoice, failed: list[FailedPlugin]) -> list[Plugin]:
    """Built-in plugins first, then third parties by distribution and name, then module paths."""

    def damaged(name: str, error: Exception) -> None:
        failed.append(Plugin(name, name, "", builtin=False).failed("metadata", error))

    entries = entry_points_of(hookspecs.PROJECT, damaged)
    found = [_from_entry_point(entry, choice) for entry in entries]
    if not any(plugin.builtin for plugin in found):
        raise PluginError(
            "accel_bridge is not installed: its own backends were not found",
            evidence=f"no entry point of the group {hookspecs.PROJECT!r} comes from the "
            f"distribution {DISTRIBUTION!r}",
            next="pip install -e .   (in your clone of accel_bridge)",
        )
    found.sort(key=lambda plugin: (not plugin.builtin, plugin.distribution, plugin.name))
    paths = [word for word in choice.extra if not any(plugin.is_named(word) for plugin in found)]
    return found + [Plugin(path, "", path, builtin=False, requested=True) for path in paths]


def _from_entry_point(entry: EntryPoint, choice: PluginChoice) -> Plugin:
    name, version = identity(entry.dist)
    builtin = name.lower().replace("_", "-") == DISTRIBUTION
    plugin = Plugin(entry.name, f"{name} {version}".strip(), entry.value, builtin)
    return replace(plugin, requested=any(plugin.is_named(word) for word in choice.extra))
