"""Facts about the installed torch, read from its files: torch itself is not imported."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """How the installed torch was built.

    :param version: as in ``torch.__version__``, e.g. ``2.13.0+cu130``.
    :param cuda: CUDA version it was built for, as in ``torch.version.cuda``; None without CUDA.
    """

    version: str
    cuda: str | None

    @property
    def release(self) -> str:
        """The version without the build's suffix, e.g. ``2.13.0``."""
        return self.version.split("+")[0]


def installed_torch(
    find: Callable[[str], ModuleSpec | None] = importlib.util.find_spec,
) -> TorchBuild | None:
    """The installed torch, from its ``torch/version.py``; None if torch is not installed.

    Source: torch writes that file at build time (tools/generate_torch_version.py).
    """
    spec = find("torch")
    if spec is None or spec.origin is None:
        return None
    values = _constants(Path(spec.origin).with_name("version.py"))
    return TorchBuild(values.get("__version__") or "unknown", values.get("cuda"))


def _constants(path: Path) -> dict[str, str]:
    """Module-level names of a Python file that hold a string; none when it cannot be read."""
    if not path.is_file():
        return {}
    values: dict[str, str] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in targets:
                if isinstance(target, ast.Name):
                    values[target.id] = node.value.value
    return values


def package_version(distribution: str) -> str | None:
    """Version of an installed distribution, from its metadata; None when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
