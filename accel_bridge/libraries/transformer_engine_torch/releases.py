"""Which releases of NVIDIA's Transformer Engine are served, and the one that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from packaging.version import InvalidVersion, Version

from accel_bridge.errors import BridgeError

#: The first and the last release that every test ran with: (major, minor).
OLDEST: Final = (2, 8)
NEWEST: Final = (2, 20)
#: Both, for people.
SERVED: Final = " to ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))


class ReleaseError(BridgeError):
    """The installed Transformer Engine is older than what is served."""


def installed() -> str | None:
    """The version of the installed Transformer Engine; None if it has none."""
    try:
        return version("transformer_engine")
    except PackageNotFoundError:
        return None


def release(text: str | None) -> tuple[int, int]:
    """(major, minor) of a version; :data:`NEWEST` where there is none."""
    try:
        parsed = Version(text or "")
    except InvalidVersion:
        return NEWEST
    return parsed.major, parsed.minor


#: The release above this extension: (major, minor). Modules ask it where releases differ.
RELEASE: Final = release(installed())


def check(text: str | None) -> str | None:
    """A warning for a release newer than the newest that was tested; None for those between.

    :raises ReleaseError: it is older than the oldest that is served.
    """
    found = release(text)
    if found < OLDEST:
        raise ReleaseError(
            f"Transformer Engine {text} is older than what accel_bridge's extension serves",
            evidence=f"it serves {SERVED}",
            next="pip install --upgrade transformer_engine, or leave it out: "
            "ACCEL_BRIDGE_LIBRARIES=-transformer_engine",
        )
    if found > NEWEST:
        return (
            f"Transformer Engine {text} is newer than what was tested with accel_bridge's "
            f"extension, {SERVED}"
        )
    return None
