"""Names that Megatron has changed: each thing with all its names, the newest first.

As parameters they stand in a patch's ``uses`` (``context.argument`` finds the one that is there);
as attributes :func:`attribute` reads them.
"""

from __future__ import annotations

from typing import Any, Final

#: The process groups of a module: the second in 0.13 and 0.14, the first since 0.15.
PROCESS_GROUPS: Final = ("pg_collection", "model_comm_pgs")


def attribute(owner: object, names: tuple[str, ...]) -> Any:
    """The attribute of ``owner`` that has one of ``names``; None where it has none."""
    return next((getattr(owner, name) for name in names if hasattr(owner, name)), None)
