"""One plugin: it was loaded, or it failed and its traceback is kept."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Final

from accel_bridge.errors import PluginError
from accel_bridge.process.environment import PLUGINS
from accel_bridge.process.log import is_debug

#: Why a plugin that was named is needed.
ASKED_FOR: Final = f"{PLUGINS.name} asks for it"

#: Characters of an error that are shown: a plugin may quote whatever it has.
_MOST_SHOWN: Final = 1000


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that was imported and registered.

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


@dataclass(frozen=True, slots=True)
class FailedPlugin:
    """A plugin, or one of its hooks, that failed.

    :param name: as in :class:`LoadedPlugin`.
    :param distribution: as in :class:`LoadedPlugin`.
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


def failure(
    name: str,
    distribution: str,
    stage: str,
    error: BaseException | str,
    requested: bool = False,
) -> FailedPlugin:
    """What an error, or a reason in words, means for the plugin; see :class:`FailedPlugin`."""
    if isinstance(error, str):
        return FailedPlugin(name, distribution, stage, error, None, requested)
    line = " ".join(traceback.format_exception_only(error)[-1].split())
    line = line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}..."
    text = "".join(traceback.format_exception(error))
    return FailedPlugin(name, distribution, stage, line, text, requested)
