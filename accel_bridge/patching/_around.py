"""The wrappers of most patches: something is done before the call, or after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patching._record import PatchContext

Make = Callable[[PatchContext], Callable[..., Any]]


def before(action: Callable[..., None]) -> Make:
    """``make`` of a WRAP patch: ``action``, then the original with the call as it came.

    :param action: gets the patch's context and the values of the parameters in ``uses``.
    """

    def make(context: PatchContext) -> Callable[..., Any]:
        original = context.original
        used = [context.argument(spelling) for spelling in context.patch.uses]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            action(context, *(one.get(args, kwargs) for one in used))
            return original(*args, **kwargs)

        return call

    return make


def after(action: Callable[..., None]) -> Make:
    """``make`` of a WRAP patch: the original with the call as it came, then ``action``.

    :param action: gets the patch's context, the result, which is returned, and the values of the
        parameters in ``uses``.
    """

    def make(context: PatchContext) -> Callable[..., Any]:
        original = context.original
        used = [context.argument(spelling) for spelling in context.patch.uses]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            action(context, result, *(one.get(args, kwargs) for one in used))
            return result

        return call

    return make
