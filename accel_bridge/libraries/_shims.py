"""The shims of this process: decided, put in place, removed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection

from accel_bridge.device.backend import Backend, features_of
from accel_bridge.libraries._decision import Origin, Resolution, decide
from accel_bridge.libraries._finder import ShimFinder
from accel_bridge.libraries._library import LIBRARIES
from accel_bridge.libraries.transformer_engine_torch._loader import ExtensionLoader
from accel_bridge.process import log
from accel_bridge.process.environment import LibraryChoice
from accel_bridge.process.journal import Journal


class Shims:
    """Decides for every library where its imports go.

    :param choice: value of ``ACCEL_BRIDGE_LIBRARIES``.
    :param backend: the selected one: it says which modules cannot work on it.
    """

    def __init__(self, choice: LibraryChoice, backend: Backend) -> None:
        self._choice = choice
        self._backend = backend
        self._finder: ShimFinder | None = None
        self._journal = Journal()
        #: One for every library, once they are in place.
        self.resolutions: list[Resolution] = []

    def place(self, adaptor: str | None = None) -> None:
        """Put the shims under their libraries' names, hide what cannot work, and say so.

        :param adaptor: name of the adaptor that took the device over.
        """
        for line in self._choice.unknown(LIBRARIES):
            log.warn(line)
        hidden, title = self._backend.hidden_modules, self._backend.title
        self.resolutions = decide(self._choice, hidden, title, adaptor)
        for resolution in self.resolutions:
            if resolution.warning is not None:
                log.warn(resolution.warning)
        chosen = [one for one in self.resolutions if one.origin is Origin.SHIM]
        completed = [one for one in self.resolutions if one.origin is Origin.COMPLETED]
        self._hide({root for one in (*chosen, *completed) for root in one.library.roots})
        extension = None
        if completed:
            extension = ExtensionLoader(features_of(self._backend))
            extension.prepare(self._journal)
            log.say(
                f"{completed[0].library.name} {completed[0].version}: NVIDIA's Python over "
                "accel_bridge's extension"
            )
        if chosen or completed:
            self._finder = ShimFinder(
                [one.library for one in chosen], extension=extension, hidden=hidden
            )
            self._finder.install()
        if chosen:
            first, rest = chosen[0], len(chosen) - 1
            more = f" and {rest} more" if rest else ""
            log.say(
                f"shims: {first.library.name} {first.version}{more} "
                "(`accel-bridge libraries` lists them)"
            )

    def serves(self, name: str) -> bool:
        """Whether imports of the top-level module ``name`` get a shim."""
        return self._finder is not None and self._finder.serves(name)

    def remove(self) -> None:
        """Take the shims and their modules out again, and show what was hidden."""
        if self._finder is not None:
            self._finder.remove()
            self._finder = None
        self._journal.undo()

    def _hide(self, replaced: Collection[str]) -> None:
        """Make imports of modules that cannot work here fail, except those that are replaced."""
        absent = (one.library for one in self.resolutions if one.origin is Origin.ABSENT)
        broken = [library.name for library in absent if library.completed]
        for name in dict.fromkeys((*self._backend.hidden_modules, *broken)):
            if name in replaced:
                continue
            if sys.modules.get(name) is not None:
                log.warn(f"{name} was imported before accel_bridge and stays visible to Megatron")
            elif name not in sys.modules and importlib.util.find_spec(name) is not None:
                self._journal.set_item(sys.modules, name, None)
                log.say(f"{name} is installed but cannot work on {self._backend.title}: hidden")
