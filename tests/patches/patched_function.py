"""What a patch puts in the place of a function of a test's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from accel_bridge.patching import Patch, PatchContext


def patched(patches: Iterable[Patch], upstream: Any, id: str = "", **context: Any) -> Any:
    """What the only patch, or the one with that id, makes of ``upstream``.

    :param context: more of the :class:`PatchContext`: ``module``, ``owner``, ``host``.
    """
    (patch,) = (one for one in patches if one.id == id or not id)
    signature = inspect.signature(upstream) if callable(upstream) else None
    known = {"module": None, "owner": None, "host": None, **context}
    return patch.make(PatchContext(upstream, **known, patch=patch, signature=signature))
