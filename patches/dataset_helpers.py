"""Data sets: helpers that are already compiled, and empty splits."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accel_bridge.errors import BridgeError
from accel_bridge.patches._factory import TESTED, megatron_patch
from accel_bridge.patching import Kind, PatchContext, before


def _make(context: PatchContext) -> Callable[..., None]:
    directory = Path(str(context.module.__file__)).parent

    def compile_helpers(*args: Any, **kwargs: Any) -> None:
        """Compile the helpers only if they are not compiled yet."""
        if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
            return
        if not (directory / "Makefile").is_file():
            raise BridgeError(
                "Megatron's dataset helpers are not compiled and cannot be compiled here.",
                evidence=(f"no helpers_cpp and no Makefile in {directory}",),
                next="pip install --force-reinstall --no-deps "
                f"'megatron-core{TESTED}' (its wheel holds them)",
            )
        _make_in(directory)

    return compile_helpers


def _make_in(directory: Path) -> None:
    """Run upstream's Makefile for this Python, with the pybind11 that torch brings along.

    By itself it asks ``python3`` and ``python3-config``, which may be another Python's.

    :raises BridgeError: it fails.
    """
    import torch

    headers = [sysconfig.get_path("include"), str(Path(torch.__file__).parent / "include")]
    words = ["CPPFLAGS=" + " ".join(f"-I{path}" for path in headers)]
    words.append(f"LIBEXT={sysconfig.get_config_var('EXT_SUFFIX')}")
    try:
        made = subprocess.run(
            ["make", "-C", str(directory), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        status, output = 127, "make is not installed"
    else:
        status, output = made.returncode, made.stdout
    if status:
        last = [line for line in output.splitlines() if line.strip()][-4:]
        raise BridgeError(
            "Megatron's dataset helpers cannot be compiled.",
            evidence=(f"make -C {directory} ended with status {status}", *last),
            next="install make, a C++ compiler and this Python's headers (Debian: "
            "apt-get install make g++ python3-dev)",
        )
    importlib.invalidate_caches()


def _check_tokens(context: PatchContext, split: Any, tokens: int) -> None:
    """A split without tokens never yields an epoch."""
    if tokens <= 0:
        raise BridgeError(
            f"The {split.index_split.name} split of the data holds no tokens.",
            evidence=(
                f"data: {split.dataset.path_prefix}, {len(split.dataset)} sequences in all",
                f"--split {split.config.split}",
            ),
            next="give that split a larger part in --split, or 0 to omit it, or use more data",
        )


PATCHES = (
    megatron_patch(
        id="dataset-helpers",
        target="megatron.core.datasets.utils:compile_helpers",
        kind=Kind.WRAP,
        make=_make,
        why="megatron.training runs `make`, which fails in a pip-installed Megatron; in a checkout "
        "it needs pybind11 and compiles for the path's first Python",
        removed_when="compile_helpers returns when helpers_cpp can be imported",
        loses="training stops with 'Failed to compile the C++ dataset helper functions'",
    ),
    megatron_patch(
        id="dataset-without-tokens",
        target="megatron.core.datasets.gpt_dataset:GPTDataset._get_num_epochs",
        kind=Kind.WRAP,
        make=before(_check_tokens),
        why="upstream counts epochs forever for a split without tokens, as small data sets have",
        removed_when="upstream refuses a split without tokens",
        loses="training on a small data set can hang while it builds its data sets",
        uses=("self", "num_tokens_per_epoch"),
    ),
)
