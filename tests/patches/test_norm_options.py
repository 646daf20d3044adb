"""The local spec's norm in upstream's table of operator backends (NVIDIA/Megatron-LM#6689)."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.patches import norm
from accel_bridge.patching import PatchEngine

#: What that change's module has of it.
BACKENDS = """
class NormTorch:
    @classmethod
    def from_options(cls, options):
        if options.sequence_parallel:
            raise ValueError("Torch's norm cannot do sequence parallelism.")
        return cls()
"""


def test_the_table_takes_what_the_norm_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "norm_backends.py").write_text(BACKENDS)
    monkeypatch.syspath_prepend(tmp_path)
    (patch,) = (one for one in norm.PATCHES if one.id == "torch-norm-options")
    there = dataclasses.replace(patch, target="norm_backends:NormTorch.from_options", requires=None)
    options = SimpleNamespace(sequence_parallel=True)
    host: Any = SimpleNamespace(library=lambda name: object())
    with PatchEngine((there,), host=host):
        import norm_backends  # type: ignore[import-not-found]

        made = norm_backends.NormTorch.from_options(options)
        assert type(made) is norm_backends.NormTorch
    with pytest.raises(ValueError, match="sequence parallelism"):
        norm_backends.NormTorch.from_options(options)
    sys.modules.pop("norm_backends")
