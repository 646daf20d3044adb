"""What pyproject.toml promises."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from accel_bridge import __version__
from accel_bridge.process.extras import EXTRAS
from accel_bridge.process.lazy import PARTS
from distribution.support import DIRECTORIES, pyproject


def test_a_missing_module_is_sent_to_the_extra_that_brings_it() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        brought = {Requirement(text).name for text in extras[extra]}
        assert {module, f"{module}-core"} & brought, module


def test_what_nvidias_python_imports_comes_with_the_bridge() -> None:
    spec = find_spec("transformer_engine")
    assert spec.origin is not None
    root = Path(spec.origin).parent
    imported = set()
    for file in (*root.glob("common/recipe/*.py"), *root.glob("pytorch/**/*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Import):
                imported |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    brought = {Requirement(text).name for text in pyproject()["project"]["dependencies"]}
    # PyTorch comes with Megatron, NumPy and Triton with PyTorch; ONNX is imported to export only.
    beside = {"torch", "triton", "numpy", "onnx", "onnxscript", "transformer_engine_torch"}
    built_by = {"build_tools", "setuptools", "wheel"}
    assert imported - set(sys.stdlib_module_names) - beside - built_by <= brought


def test_a_checkout_is_made_whole_as_the_package_is_laid_out() -> None:
    assert {f"accel_bridge/{part}" for part in PARTS} == set(DIRECTORIES.values()) - {
        "accel_bridge"
    }


def test_the_version_is_the_same_everywhere() -> None:
    assert pyproject()["project"]["version"] == __version__
