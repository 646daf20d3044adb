"""Which versions fit together: torch_npu and CANN, and the two Transformer Engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from packaging.version import InvalidVersion, Version

from accel_bridge.errors import BridgeError
from accel_bridge.plugins.installed import owners

#: CANN release that each torch_npu release was built with.
#: Source: Ascend/pytorch, COMPATIBILITY.md (August 2026). Releases that it does not list, such as
#: 2.14.0, are not checked.
CANN_OF_TORCH_NPU: Final[Mapping[str, str]] = {
    "2.12.0": "9.1.0",
    "2.11.0": "9.1.0",
    "2.10.0.post4": "9.1.0",
    "2.9.0.post6": "9.1.0",
    "2.7.1.post8": "9.1.0",
    "2.10.0": "9.0.0",
    "2.9.0.post2": "9.0.0",
    "2.8.0.post4": "9.0.0",
    "2.7.1.post4": "9.0.0",
    "2.9.0": "8.5.0",
    "2.8.0.post2": "8.5.0",
    "2.7.1.post2": "8.5.0",
    "2.6.0.post5": "8.5.0",
    "2.8.0": "8.3.RC1",
    "2.7.1": "8.3.RC1",
    "2.6.0.post3": "8.3.RC1",
    "2.6.0": "8.2.RC1",
}

TRANSFORMER_ENGINE: Final = "transformer_engine"


class TwoTransformerEnginesError(BridgeError):
    """NVIDIA's Transformer Engine and TransformerEngineNPU are both installed."""


def cann_mismatch(torch_npu: str, cann: str) -> str | None:
    """``CANN 8.3.RC1 is older than 8.5.0, ...``; None if they fit or nothing is known."""
    made_with = CANN_OF_TORCH_NPU.get(torch_npu)
    if made_with is None:
        return None
    try:
        found, wanted = Version(cann), Version(made_with)
    except InvalidVersion:
        return None
    if Version(found.base_version) == Version(wanted.base_version):
        return None
    how = "older" if found < wanted else "newer"
    return f"CANN {cann} is {how} than {made_with}, which torch_npu {torch_npu} was built with"


def foreign_transformer_engine(
    find: Callable[[str], Collection[str]] = owners,
) -> bool:
    """Whether the installed ``transformer_engine`` is NVIDIA's, which needs a GPU.

    TransformerEngineNPU has the same module name but works on an NPU.

    :raises TwoTransformerEnginesError: both are installed: one has overwritten the other's files.
    """
    found = {name.lower().replace("_", "-") for name in find(TRANSFORMER_ENGINE)}
    nvidia = {name for name in found if name.startswith("transformer-engine") and "npu" not in name}
    others = found - nvidia
    if nvidia and others:
        raise TwoTransformerEnginesError(
            "two packages have the module transformer_engine; which one is imported is undefined",
            evidence=f"installed: {', '.join(sorted(found))}",
            next=f"pip uninstall {' '.join(sorted(nvidia))}, then pip install --force-reinstall "
            f"--no-deps {' '.join(sorted(others))}; accel_bridge brings NVIDIA's unless it is "
            "installed with --no-deps",
        )
    return bool(nvidia)
