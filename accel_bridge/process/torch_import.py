"""The import of torch: a broken one is named, and not what happened to import it first."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.extras import require
from accel_bridge.process.log import is_debug

#: Beside the standard library: what a file in a script's folder must not be called.
_LIBRARIES: Final = frozenset(
    "torch numpy triton megatron transformers tokenizers tiktoken safetensors einops pydantic yaml "
    "packaging pluggy apex flash_attn transformer_engine torch_npu mindspeed".split()
)


def hidden_by(file: Path) -> str | None:
    """The library or module of Python that a file hides where imports find it first.

    None for a file of another name, and for one that is installed.
    """
    name = file.stem if file.suffix == ".py" else ""
    known = name in _LIBRARIES or name in sys.stdlib_module_names
    places = {Path(one) for one in sysconfig.get_paths().values()}
    return name if known and not places.intersection(file.parents) else None


def hiding(folders: Iterable[Path]) -> set[Path]:
    """The files of these folders that hide a library, or a module of Python."""
    found = {file.resolve() for folder in folders for file in folder.glob("*.py")}
    return {file for file in found if hidden_by(file)}


class BrokenTorch(BridgeError):
    """PyTorch is installed and cannot be imported."""


class NoDirectory(BridgeError):
    """The current directory was removed."""


def _check_directory() -> None:
    """Without one, oneMKL ends the process at the first operation."""
    try:
        os.getcwd()
    except OSError as error:
        raise NoDirectory(
            "The current directory is not there any more.",
            evidence=f"{type(error).__name__}: {error}; PWD={os.environ.get('PWD', '')}",
            next='cd to one that is there (cd "$PWD" where it was made anew), then the same '
            "command again",
        ) from error


def import_torch() -> None:
    """Import torch; where it is broken, say that it is torch.

    :raises MissingPackage: it is not installed.
    :raises BrokenTorch: its import fails, or gives something else than PyTorch.
    :raises NoDirectory: the current directory is gone.
    """
    require("torch")
    _check_directory()
    try:
        import torch

        found = getattr(torch, "__file__", None)
        if not (hasattr(torch, "__version__") and hasattr(torch, "Tensor")):
            raise ImportError(f"{found or list(torch.__path__)} is not PyTorch")
    except (Exception, SystemExit) as error:
        files = [Path(one.filename) for one in traceback.extract_tb(error.__traceback__)]
        files += [Path(found)] if (found := _file_of("torch")) else []
        hides = [file for file in files if hidden_by(file)]
        line = " ".join(traceback.format_exception_only(error)[-1].split())
        if hides:
            name = hidden_by(hides[-1])
            raise BrokenTorch(
                f"`import {name}` finds {hides[-1]}, so PyTorch cannot be imported.",
                evidence=[line, f"Python looks beside the script before it comes to {name}"],
                next=f"mv {hides[-1]} {hides[-1].with_name(f'my_{hides[-1].name}')}",
            ) from error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        debug = "".join(traceback.format_exception(error)).splitlines() * is_debug()
        raise BrokenTorch(
            "PyTorch is installed and cannot be imported.",
            evidence=[line, f"raised in {frame.filename}:{frame.lineno}", *debug],
            next=f"{sys.executable} -c 'import torch' shows it alone; fix or reinstall torch "
            "(`accel-bridge env` shows versions and libraries)",
        ) from error


def _file_of(name: str) -> str | None:
    """The file that an import of ``name`` found, or would find."""
    try:
        module = sys.modules.get(name)
        spec = module.__spec__ if module else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec else None
