"""Things that Megatron has renamed: each with all its names, newest first.

If they are parameters, list them in a patch's ``uses`` (``context.argument`` finds the right one);
if they are attributes, :func:`attribute` reads them.
"""

from __future__ import annotations

from typing import Any, Final

#: The process groups of a module: the second in 0.13 and 0.14, the first since 0.15.
PROCESS_GROUPS: Final = ("pg_collection", "model_comm_pgs")


def attribute(owner: object, names: tuple[str, ...]) -> Any:
    """The attribute of ``owner`` with one of ``names``; None if it has none of them."""
    return next((getattr(owner, name) for name in names if hasattr(owner, name)), None)
