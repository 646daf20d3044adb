"""Which attention an installed Transformer Engine would really run, and why.

Transformer Engine silently falls back from cuDNN's fused attention to an unfused one when a cuDNN
sub-library cannot be loaded: 2.4 times the time and 5 times the memory (measured on an H200: 620 ms
and 58 GB instead of 257 ms and 12 GB). This module checks what decides that, without importing
Transformer Engine and without a CUDA context.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from accel_bridge.backends._torch_build import package_version

#: Sub-libraries of cuDNN 9 that fused attention loads by name while it runs.
SUB_LIBRARIES: Final = (
    "libcudnn_graph.so.9",
    "libcudnn_ops.so.9",
    "libcudnn_heuristic.so.9",
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
)
#: Transformer Engine's switches -> what a 0 turns off.
SWITCHES: Final = {"NVTE_FLASH_ATTN": "flash", "NVTE_FUSED_ATTN": "fused"}


@dataclass(frozen=True, slots=True)
class TeAttention:
    """Which attention Transformer Engine will use.

    :param backend: ``flash`` (the flash-attn package), ``fused`` (cuDNN), ``unfused``, or None
        without Transformer Engine.
    :param why: one sentence.
    :param evidence: what was looked at, one line each.
    :param remedy: the command or edit that enables fused attention; None if nothing is wrong.
    """

    backend: Literal["flash", "fused", "unfused"] | None
    why: str
    evidence: tuple[str, ...] = ()
    remedy: str | None = None


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _load(name: str) -> None:
    """:raises OSError: the loader cannot find the library, or one that it needs."""
    ctypes.CDLL(name)


@dataclass(frozen=True, slots=True)
class TeAttentionSearch:
    """The search, with everything it looks at as a parameter.

    :param installed: whether a module can be imported.
    :param version: version of an installed distribution.
    :param load: loads a shared library by name.
    :param library_folder: where pip puts cuDNN's libraries; None if unknown.
    """

    environ: Mapping[str, str]
    installed: Callable[[str], bool] = _installed
    version: Callable[[str], str | None] = package_version
    load: Callable[[str], None] = _load
    library_folder: Path | None = None

    def run(self, capability: tuple[int, int] | None = None) -> TeAttention:
        """What will run on a device of ``capability`` (None: not known)."""
        if not self.installed("transformer_engine"):
            return TeAttention(None, "Transformer Engine is not installed")
        evidence = [f"transformer_engine {self.version('transformer_engine') or '(no version)'}"]
        off = set()
        for switch, backend in SWITCHES.items():
            if (value := self.environ.get(switch)) is not None:
                evidence.append(f"{switch}={value}")
                if value == "0":
                    off.add(backend)
        failures = self._unloadable()
        evidence += failures
        fused = "fused" not in off and not failures
        if "flash" not in off and self.installed("flash_attn"):
            evidence.append(f"flash-attn {self.version('flash-attn') or '(no version)'}")
            # On Hopper and later cuDNN comes first where it supports the call.
            if not fused or (capability is not None and capability < (9, 0)):
                return TeAttention("flash", "the flash-attn package is installed", tuple(evidence))
        if fused:
            return TeAttention("fused", "cuDNN's sub-libraries can be loaded", tuple(evidence))
        if "fused" in off:
            return TeAttention(
                "unfused",
                "NVTE_FUSED_ATTN=0 turns cuDNN's attention off, and flash-attn cannot be used",
                tuple(evidence),
                "unset NVTE_FUSED_ATTN",
            )
        return TeAttention(
            "unfused",
            f"{len(failures)} of cuDNN's sub-libraries cannot be loaded by name, and Transformer "
            "Engine does not report it",
            tuple(evidence),
            self._remedy(),
        )

    def _unloadable(self) -> list[str]:
        """One line for each sub-library that the loader does not find by its name."""
        lines = []
        for name in SUB_LIBRARIES:
            try:
                self.load(name)
            except OSError as error:
                lines.append(f"{name}: {error}")
        return lines

    def _remedy(self) -> str:
        folder = self.library_folder or Path("SITE-PACKAGES/nvidia/cudnn/lib")
        names = " ".join(str(folder / name) for name in SUB_LIBRARIES)
        return (
            f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH (and, if that is not enough, "
            f'LD_PRELOAD="{names}"); --attention-backend fused then stops instead of falling back'
        )


def te_attention(capability: tuple[int, int] | None = None) -> TeAttention:
    """What the Transformer Engine installed here would run; never raises for a broken one.

    :param capability: of the device, e.g. (9, 0); None when it is not known.
    """
    return TeAttentionSearch(os.environ, library_folder=_cudnn_folder()).run(capability)


def _cudnn_folder() -> Path | None:
    """Where pip has put cuDNN, or None."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(root) / "cudnn/lib"
        if folder.is_dir():
            return folder
    return None
