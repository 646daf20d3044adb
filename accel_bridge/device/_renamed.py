"""A device module under the names that ``torch.cuda`` uses."""

from __future__ import annotations

from typing import Any


class Renamed:
    """For ``DeviceSpec.module``: the vendor's module with some names spelled as in CUDA's."""

    def __init__(self, module: Any, **names: str) -> None:
        """:param names: name in ``torch.cuda`` -> name in ``module``."""
        self._module = module
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, self._names.get(name, name))
