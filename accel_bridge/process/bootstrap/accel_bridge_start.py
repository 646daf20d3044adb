"""Runs whenever a Python starts beside which accel_bridge is installed; imports next to nothing.

With ``ACCEL_BRIDGE_AUTO=1`` the bridge waits for the first import of PyTorch. A Python without the
bridge finds Transformer Engine as if it were not installed while its compiled part is missing,
which accel_bridge's installation does without: it would raise RuntimeError, where Megatron and
others expect ImportError.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing's, whose import costs a millisecond
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_NAME = "transformer_engine"
#: What its error says. Source: transformer_engine/common/__init__.py.
_EMPTY = "meta package installed"


class Guard:
    """Finds Transformer Engine elsewhere, or after accel_bridge is imported but not active."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Its own spec, with a loader that says by an ImportError what is missing."""
        if fullname != _NAME:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """A module's own loader."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self._own.exec_module(module)
        except RuntimeError as error:
            if _EMPTY not in str(error):
                raise
            raise ModuleNotFoundError(
                f"{_NAME} has no compiled part here, and this program runs without accel_bridge, "
                "which replaces it: start it with `accel-bridge run -- ...`",
                name=_NAME,
            ) from error


def is_empty(directory: str) -> bool:
    """Whether Transformer Engine's Python lies in a directory without a compiled part beside it."""
    try:
        names = os.listdir(directory)
    except OSError:  # a zip file
        return False
    return _NAME in names and not any(name.startswith(f"{_NAME}_") for name in names)


def start() -> None:
    """What the lines above say."""
    sys.meta_path.insert(0, Guard())
    if os.environ.get("ACCEL_BRIDGE_AUTO", "").lower() in ("", "0", "false", "no", "off"):
        if is_empty(os.path.dirname(__file__)):
            # peft and others ask find_spec, and import what it finds: None is what absent means
            # to both. accel_bridge takes it away when it is imported.
            sys.modules[_NAME] = None  # type: ignore[assignment]
        return
    try:
        import accel_bridge_hook as hook  # type: ignore[import-not-found]
    except ImportError:
        from importlib.util import find_spec

        found = find_spec("accel_bridge")
        assert found is not None
        assert found.submodule_search_locations is not None
        sys.path.append(found.submodule_search_locations[0] + "/process/bootstrap")
        import accel_bridge_hook as hook

        sys.path.pop()
    hook.arm()


start()
