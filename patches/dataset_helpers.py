"""The dataset helpers: the wheel holds them compiled but has no Makefile to compile them with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from accel_bridge._errors import PatchError
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext


def _make(context: PatchContext) -> Callable[[], None]:
    upstream: Callable[[], None] = context.original
    folder = Path(str(context.module.__file__)).parent

    def compile_helpers() -> None:
        """Compile the helpers only where they are not compiled yet."""
        if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
            return
        if not (folder / "Makefile").is_file():
            raise PatchError(
                "Megatron's dataset helpers are not compiled and cannot be compiled here.",
                evidence=(f"no helpers_cpp and no Makefile in {folder}",),
                next="pip install --force-reinstall --no-deps megatron-core (its wheel holds them)",
            )
        upstream()

    return compile_helpers


PATCHES = (
    Patch(
        id="dataset-helpers",
        target="megatron.core.datasets.utils:compile_helpers",
        kind=Kind.WRAP,
        make=_make,
        why="megatron.training always runs `make`, which exits 1 in a pip-installed Megatron",
        upstream=f"{SOURCE}/core/datasets/utils.py",
        removed_when="compile_helpers returns when helpers_cpp can be imported",
        loses="training stops with 'Failed to compile the C++ dataset helper functions'",
        requires=REQUIRES,
        parameters=(),
    ),
)
