"""Patches for Megatron: what all records of this package have in common, and
where one is not needed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.patching import Kind, Patch, PatchContext, Shape, Spelling
from accel_bridge.patching.host import Host

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernel

#: Distribution name that ``requires`` of the patches refers to.
DISTRIBUTION = "megatron-core"

#: Megatron versions that an installation can take from the package index.
TESTED = ">=0.19,<0.20"

#: What a patch requires unless it says more: the oldest version that was looked at.
REQUIRES = f"{DISTRIBUTION}>=0.12"

#: Where upstream references point: the tag that the patches were written against.
SOURCE = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.19.0"

#: The version in the table of targets that upstream references are taken from.
REFERENCE = "0.19.2"


def megatron_arguments() -> Any:
    """Megatron's arguments; None where nothing has parsed them, or only megatron.core is used."""
    loaded = sys.modules.get("megatron.training.global_vars")
    return getattr(loaded, "_GLOBAL_ARGS", None)


#: id -> version -> what the target looks like in it; written by tools/targets.py.
TARGETS: Final = Path(__file__).with_name("targets.json")


def megatron_patch(
    *,
    id: str,
    target: str,
    kind: Kind,
    make: Callable[[PatchContext], object],
    why: str,
    removed_when: str,
    loses: str,
    requires: str = REQUIRES,
    elsewhere: str = "",
    uses: tuple[Spelling, ...] = (),
    parameters: tuple[str, ...] | None = None,
    armed_when: Callable[[], bool] | None = None,
    skip_when: Callable[[Any], str | None] | None = None,
    kernels: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    optional: bool = False,
) -> Patch:
    """A :class:`Patch` for Megatron; see that class for the other parameters.

    ``upstream`` follows from the target, and the expected parameters and digests from the table.

    :param parameters: only if no source shows them because the target is computed at import.
    """
    expected = targets().get(id, {})
    shape = expected.get(REFERENCE)
    place = shape.place if shape else ""
    file = place.partition(":")[0] or target.partition(":")[0].replace(".", "/")
    return Patch(
        id=id,
        target=target,
        kind=kind,
        make=make,
        why=why,
        upstream=f"{SOURCE}/{file}",
        removed_when=removed_when,
        loses=loses,
        requires=requires,
        elsewhere=elsewhere,
        uses=uses,
        parameters=parameters,
        expected=expected,
        armed_when=armed_when,
        skip_when=skip_when,
        kernels=kernels,
        after=after,
        needs=needs,
        optional=optional,
    )


@cache
def targets() -> Mapping[str, Mapping[str, Shape]]:
    """The table in :data:`TARGETS`."""
    table = json.loads(TARGETS.read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            id: {version: Shape.from_json(entry) for version, entry in versions.items()}
            for id, versions in table.items()
        }
    )


Condition = Callable[[Host], str | None]


def unless_faster(name: str) -> Condition:
    """Keep Megatron's code if the kernel is a reference, which is no faster."""

    def skip(host: Host) -> str | None:
        from accel_bridge.kernels import CONTRACTS

        kernel: Kernel[Any, Any] | None = host.kernels.get(CONTRACTS[name])
        if kernel is None or not kernel.is_reference:
            return None
        return f"{name}: {kernel.why}; Megatron's own code computes the same"

    return skip


def on_host(host: Host) -> str | None:
    """Device tensors are host tensors: nothing is launched or copied."""
    return "device tensors are host tensors" if host.features.tensors_on_host else None


def has_own_memory(host: Host) -> str | None:
    """Device tensors are not host tensors: Megatron knows them by what they say."""
    return None if host.features.tensors_on_host else "tensors say the device's own name"


def without_transformer_engine(host: Host) -> str | None:
    """There is nothing to build Megatron's classes for Transformer Engine with."""
    if host.library("transformer_engine"):
        return None
    return "there is no Transformer Engine"
