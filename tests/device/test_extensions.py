"""Extensions that a script compiles: none for CUDA, the others as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.cpp_extension as compiler
from plugin_site import Python

from accel_bridge.device import DeviceRedirection
from accel_bridge.device.backend import DeviceSpec

#: In a process of its own: the module must not be imported before the redirection.
SCRIPT = """
import sys
from accel_bridge.backends.cpu._backend import CpuBackend
from accel_bridge.device import DeviceRedirection
redirection = DeviceRedirection(CpuBackend().device())
finders = list(sys.meta_path)
with redirection:
    assert "torch.utils.cpp_extension" not in sys.modules
    from torch.utils.cpp_extension import load_inline
    try:
        load_inline(name="x", cpp_sources=[""], functions=[], with_cuda=True)
    except OSError as error:
        print(error)
import torch.utils.cpp_extension as compiler
assert not hasattr(compiler.load_inline, "__wrapped__")
assert sys.meta_path == finders
"""


@pytest.mark.parametrize(
    ("builder", "arguments", "options"),
    [
        ("load", ("x", ["a.cpp", "b.cu"]), {}),
        ("load", ("x", "b.cu"), {}),
        ("load", ("x",), {"sources": ["a.cpp"], "with_cuda": True}),
        ("load_inline", ("x", ["int f();"]), {"cuda_sources": ["f"]}),
        ("load_inline", ("x", ["int f();"]), {"with_cuda": True}),
    ],
)
def test_cuda_extensions_are_refused(
    cpu_spec: DeviceSpec, builder: str, arguments: Any, options: dict[str, Any]
) -> None:
    with DeviceRedirection(cpu_spec), pytest.raises(OSError, match="'x' is not built"):
        getattr(compiler, builder)(*arguments, **options)


@pytest.mark.parametrize(
    ("builder", "options"),
    [("load", {"sources": ["a.cpp"]}), ("load_inline", {"cpp_sources": "int cuda_f();"})],
)
def test_others_are_built_as_before(
    cpu_spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch, builder: str, options: dict[str, Any]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(compiler, "_jit_compile", lambda *args, **more: seen.append(args))
    with DeviceRedirection(cpu_spec):
        getattr(compiler, builder)("x", **options)
    assert len(seen) == 1


@pytest.mark.slow
def test_the_compiler_is_imported_later(python: Python) -> None:
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the CUDA extension 'x' is not built: the device is 'cpu'\n"
