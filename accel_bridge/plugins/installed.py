"""What installed distributions have, read one by one: the metadata of one may be damaged."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any


def entry_points_of(
    group: str, damaged: Callable[[str, Exception], object]
) -> Iterator[EntryPoint]:
    """The entry points of a group.

    Of two distributions with one name Python imports the first on the path.

    :param damaged: called with each distribution that may have some and cannot be read.
    """
    seen = set[str]()
    for distribution in distributions():
        found: list[EntryPoint] | Exception
        try:
            if f"[{group}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            found = [entry for entry in distribution.entry_points if entry.group == group]
        except Exception as error:
            found = error
        # Only now: METADATA takes a millisecond to parse, and there may be hundreds of them.
        name, _ = identity(distribution)
        if name.lower() in seen:
            continue
        if isinstance(found, Exception):
            damaged(name, found)
            continue
        seen.add(name.lower())
        yield from found


def owners(module: str) -> set[str]:
    """The distributions that a top-level package belongs to.

    ``importlib.metadata.packages_distributions`` looks for every file of every distribution, which
    takes a second, and minutes where the files are on a network.
    """
    found = set()
    for distribution in distributions():
        with contextlib.suppress(OSError, ValueError):  # damaged, or not readable
            listed = (distribution.read_text("top_level.txt") or "").split()
            files = "" if listed else distribution.read_text("RECORD") or ""
            if module in listed or f"\n{module}/" in f"\n{files}":
                found.add(identity(distribution)[0])
    return found


@functools.lru_cache(maxsize=64)
def identity(distribution: Distribution | None) -> tuple[str, str]:
    """Name and version of a distribution; without METADATA its directory's name and nothing."""
    directory = str(getattr(distribution, "_path", "unknown")).rpartition("/")[2]
    stem = directory.removesuffix(".dist-info").removesuffix(".egg-info")
    try:
        metadata: Any = distribution.metadata if distribution is not None else {}
        return str(metadata["Name"] or stem), str(metadata["Version"] or "")
    except Exception:
        return stem, ""
