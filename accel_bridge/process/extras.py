"""Packages that may be missing or broken: the extra that brings each, the error without it, and the
import of torch, where a broken one is named and not what happened to fail first.

accel_bridge is installed from a clone, so the advice is a command for the clone's directory.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.log import is_debug

#: Module -> the extra in pyproject.toml that brings it (a test compares them).
EXTRAS: Final = {
    "matplotlib": "report",
    "megatron": "megatron",
    "nltk": "sentences",
    "numpy": "preprocess",
    "orjson": "preprocess",
    "pyarrow": "preprocess",
    "ray": "ray",
    "sentencepiece": "preprocess",
    "tensorboard": "report",
    "tiktoken": "preprocess",
    "tokenizers": "preprocess",
    "torch": "megatron",
    "zstandard": "preprocess",
}

_TITLES: Final = {"megatron": "Megatron", "torch": "PyTorch"}

#: The oldest Python that the extra `megatron` can be installed with.
MEGATRON_PYTHON: Final = (3, 12)


class MissingPackage(BridgeError):
    """A package that is needed here is not installed."""


def install(*extras: str) -> str:
    """The command that brings ``extras``, and where to type it."""
    where = "in your clone of accel_bridge"
    if "megatron" in extras and sys.version_info < MEGATRON_PYTHON:
        where += f", with Python {'.'.join(map(str, MEGATRON_PYTHON))} or newer"
    return f'pip install ".[{",".join(extras)}]"   ({where})'


def missing(*modules: str, extras: Iterable[str] = ()) -> MissingPackage:
    """The error for ``modules`` that are not installed.

    :param modules: names in :data:`EXTRAS`.
    :param extras: what to install; by default what brings each of them.
    """
    *others, last = (_TITLES.get(name, name) for name in modules)
    return MissingPackage(
        f"{', '.join(others)} and {last} are not installed."
        if others
        else f"{last} is not installed.",
        evidence=f"no module {', '.join(modules)} for {sys.executable}",
        next=install(*(extras or dict.fromkeys(EXTRAS[name] for name in modules))),
    )


def require(*modules: str, extras: Iterable[str] = ()) -> None:
    """Stop where one of ``modules`` is not installed; nothing is imported.

    :raises MissingPackage: as :func:`missing` says it.
    """
    absent = [name for name in modules if not _is_installed(name)]
    if absent:
        raise missing(*absent, extras=extras)


@contextmanager
def explained() -> Iterator[None]:
    """Turn the failed import of a package that an extra brings into :class:`MissingPackage`.

    Only an import in accel_bridge's own code: a user's script keeps its own errors. A package that
    is installed and broken is not missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRAS or _is_installed(name) or not _is_ours(error):
            raise
        raise missing(name) from error


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None  # None hides it
    return importlib.util.find_spec(name) is not None


def _is_ours(error: BaseException) -> bool:
    """Whether the innermost frame, the one that imports, is a module of accel_bridge."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__")) if trace else ""
    return module.startswith("accel_bridge.")


#: Beside the standard library: what a file in a script's directory must not be called.
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


def hiding(directories: Iterable[Path]) -> set[Path]:
    """The files of these directories that hide a library, or a module of Python."""
    found = {file.resolve() for directory in directories for file in directory.glob("*.py")}
    return {file for file in found if hidden_by(file)}


class BrokenTorch(BridgeError):
    """PyTorch is installed and cannot be imported."""


def _check_directory() -> None:
    """Without one, oneMKL ends the process at the first operation."""
    try:
        os.getcwd()
    except OSError as error:
        raise BridgeError(
            "The current directory is not there any more.",
            evidence=f"{type(error).__name__}: {error}; PWD={os.environ.get('PWD', '')}",
            next='cd to one that is there (cd "$PWD" where it was made anew), then the same '
            "command again",
        ) from error


def import_torch() -> None:
    """Import torch; where it is broken, say that it is torch.

    :raises MissingPackage: it is not installed.
    :raises BrokenTorch: its import fails, or gives something else than PyTorch.
    :raises BridgeError: the current directory is gone.
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
