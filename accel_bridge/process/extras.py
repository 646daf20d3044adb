"""Packages that only some commands need: the extra that brings each, and the error without it.

accel_bridge is installed from a clone, so the advice is a command for the clone's folder.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from accel_bridge.errors import BridgeError

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
