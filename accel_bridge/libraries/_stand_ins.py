"""The stand-ins of this process: decided, put in place, removed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection

from accel_bridge import _log
from accel_bridge._environment import LibraryChoice
from accel_bridge._journal import Journal
from accel_bridge.libraries._decision import Origin, Standing, decide
from accel_bridge.libraries._finder import StandInFinder
from accel_bridge.libraries._library import LIBRARIES


class StandIns:
    """Decides for every library where its imports go.

    :param choice: value of ``ACCEL_BRIDGE_LIBRARIES``.
    :param hidden: top-level modules that cannot work on the selected backend.
    :param title: that backend's name for people.
    """

    def __init__(self, choice: LibraryChoice, hidden: Collection[str], title: str) -> None:
        self._choice = choice
        self._hidden = hidden
        self._title = title
        self._finder: StandInFinder | None = None
        self._journal = Journal()
        #: One for every library, once they are in place.
        self.standings: list[Standing] = []

    def place(self, adaptor: str | None = None) -> None:
        """Put the stand-ins under their libraries' names, hide what cannot work, and say so.

        :param adaptor: name of the adaptor that took the device over.
        """
        for line in self._choice.unknown(LIBRARIES):
            _log.warn(line)
        self.standings = decide(self._choice, self._hidden, self._title, adaptor)
        for standing in self.standings:
            if standing.warning is not None:
                _log.warn(standing.warning)
        chosen = [one for one in self.standings if one.origin is Origin.STAND_IN]
        self._hide({root for one in chosen for root in one.library.roots})
        if chosen:
            self._finder = StandInFinder([one.library for one in chosen])
            self._finder.install()
            first, rest = chosen[0], len(chosen) - 1
            more = f" and {rest} more" if rest else ""
            _log.say(
                f"stand-ins: {first.library.name} {first.version}{more} "
                "(`accel-bridge libraries` lists them)"
            )

    def remove(self) -> None:
        """Take the stand-ins and their modules out again, and show what was hidden."""
        if self._finder is not None:
            self._finder.remove()
            self._finder = None
        self._journal.undo()

    def _hide(self, replaced: Collection[str]) -> None:
        """Make imports of modules that cannot work here fail, except those that are replaced."""
        for name in self._hidden:
            if name in replaced:
                continue
            if sys.modules.get(name) is not None:
                _log.warn(f"{name} was imported before accel_bridge and stays visible to Megatron")
            elif name not in sys.modules and importlib.util.find_spec(name) is not None:
                self._journal.set_item(sys.modules, name, None)
                _log.say(f"{name} is installed but cannot work on {self._title}: hidden")
