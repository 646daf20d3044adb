"""Names of numpy that older Megatrons use and numpy 2 has removed."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

#: Removed name -> what numpy calls it now.
RENAMED: Final = {"product": "prod"}
#: Modules of ``megatron.core.dist_checkpointing`` that use one.
_MODULES: Final = ("mapping", "validation", "exchange_utils")


class _Numpy(ModuleType):
    """numpy with its removed names."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        return getattr(numpy, RENAMED.get(name, name))


def _make(context: PatchContext) -> ModuleType:
    return _Numpy("numpy")


def _still_there(host: Any) -> str | None:
    import numpy

    return "numpy still has them" if all(hasattr(numpy, name) for name in RENAMED) else None


PATCHES = tuple(
    megatron_patch(
        id=f"numpy-names-{module.replace('_', '-')}",
        target=f"megatron.core.dist_checkpointing.{module}:np",
        requires="megatron-core>=0.12,<0.16",
        elsewhere="since 0.16 Megatron uses names that numpy 2 has",
        kind=Kind.ATTRIBUTE,
        make=_make,
        why="checkpoints of the distributed optimizer call numpy.product, which numpy 2 does not "
        "have",
        removed_when="Megatron 0.15 is no longer served",
        loses="checkpoints of the distributed optimizer stop with an AttributeError",
        skip_when=_still_there,
    )
    for module in _MODULES
)
