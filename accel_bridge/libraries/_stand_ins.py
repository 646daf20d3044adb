"""The stand-ins of this process: decided, put in place, removed."""

from __future__ import annotations

import sys
from collections.abc import Collection

from accel_bridge import _log
from accel_bridge._environment import LibraryChoice
from accel_bridge.libraries._decision import Origin, decide
from accel_bridge.libraries._finder import StandInFinder
from accel_bridge.libraries._library import LIBRARIES


class StandIns:
    """Decides for every library where its imports go.

    :param choice: value of ``ACCEL_BRIDGE_LIBRARIES``.
    :param hidden: top-level modules that cannot work on the selected backend.
    :param title: that backend's name for people.
    """

    def __init__(self, choice: LibraryChoice, hidden: Collection[str], title: str) -> None:
        for line in choice.unknown(LIBRARIES):
            _log.warn(line)
        self.standings = decide(choice, hidden, title)
        self._finder: StandInFinder | None = None

    def place(self) -> None:
        """Put the stand-ins under their libraries' names, and say so."""
        for standing in self.standings:
            if standing.warning is not None:
                _log.warn(standing.warning)
        chosen = [one for one in self.standings if one.origin is Origin.STAND_IN]
        if chosen:
            self._finder = StandInFinder([one.library for one in chosen])
            sys.meta_path.insert(0, self._finder)
            names = ", ".join(f"{one.library.name} {one.version}" for one in chosen)
            _log.say(f"stand-ins: {names} (`accel-bridge libraries` says why)")

    def remove(self) -> None:
        """Take the stand-ins and their modules out again."""
        if self._finder is not None:
            sys.meta_path.remove(self._finder)
            self._finder.forget()
            self._finder = None
