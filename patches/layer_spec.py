"""Modules that are named in arguments, such as ``--spec``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.arguments import ArgumentError


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    path = context.argument("module_path")

    @functools.wraps(upstream)
    def import_module(*args: Any, **kwargs: Any) -> Any:
        """The named object, or an error: None would mean the default layers."""
        named = path.get(args, kwargs)
        try:
            found = upstream(*args, **kwargs)
        except (KeyError, ValueError, TypeError) as error:
            raise refused(named, error) from error
        return found if found is not None else _try_again(named)

    return import_module


def _try_again(named: Any) -> Any:
    # Upstream has logged the ImportError and dropped it.
    try:
        return getattr(importlib.import_module(named[0]), named[1])
    except (ImportError, AttributeError) as error:
        raise refused(named, error) from error


def refused(named: Any, error: Exception) -> ArgumentError:
    """The error for a module and name that lead nowhere.

    :param named: what stands after ``--spec``.
    """
    words = [named] if isinstance(named, str) else list(named or ())
    if len(words) != 2:
        evidence = f"found {len(words)} word{'s' if len(words) != 1 else ''}: {' '.join(words)}"
    elif isinstance(error, ImportError):
        evidence = f"import {words[0]}: {error}"
    else:
        evidence = f"{words[0]} has no {words[1]}"
    return ArgumentError(
        f"The module that is named cannot be had: {' '.join(words)}.",
        evidence=evidence,
        next="give --spec a module on PYTHONPATH and the name of a function or spec in it, as in "
        "--spec megatron.core.models.gpt.gpt_layer_specs get_gpt_layer_local_spec",
    )


PATCHES = (
    megatron_patch(
        id="named-module",
        target="megatron.core.transformer.spec_utils:import_module",
        kind=Kind.WRAP,
        make=_make,
        why="a module that cannot be imported becomes None, which means the default layers",
        removed_when="upstream raises the ImportError",
        loses="a misspelt --spec trains another model, silently",
        uses=("module_path",),
    ),
)
