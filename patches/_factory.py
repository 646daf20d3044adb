"""Patches for Megatron: what all records of this package have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from accel_bridge.patches._upstream import REFERENCE, REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext, Shape, Spelling

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
