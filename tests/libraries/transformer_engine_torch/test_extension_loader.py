"""The wheel of NVIDIA's Transformer Engine, completed: found, named, versioned, and undone."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import pickle
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from plugin_site import Python, Site
from torch._subclasses.fake_tensor import FakeTensorMode

from accel_bridge.libraries import LIBRARIES, Origin, _decision, decide
from accel_bridge.libraries import transformer_engine_torch as extension
from accel_bridge.libraries.transformer_engine_torch import releases
from accel_bridge.process.environment import LibraryChoice

#: Names of a plugin that replaces all of the extension.
NOT_THE_EXTENSIONS = {"flash_attention", "get_attention_backend"}


def decided(hidden: tuple[str, ...] = ("transformer_engine",), **options: Any) -> Any:
    library = LIBRARIES["transformer_engine"]
    (found,) = decide(LibraryChoice(), hidden, "CPU", None, [library], **options)
    return found


def test_the_wheel_is_completed_and_its_absence_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decided()
    assert (found.origin, found.version) == (Origin.COMPLETED, version("transformer_engine"))
    assert decided(hidden=()).origin is Origin.COMPLETED  # it has no compiled part
    with monkeypatch.context() as patch:  # TransformerEngineNPU has the same module
        patch.setattr(_decision, "installed_version", lambda distribution: None)
        assert decided(hidden=()).origin is Origin.REAL
        assert decided().origin is Origin.ABSENT
    absent = decided(find=lambda name: None)
    assert absent.origin is Origin.ABSENT
    assert "pip install transformer_engine" in absent.why


ACTIVATED = """
import os, sys
before = dict(os.environ)
import accel_bridge
meta_path = list(sys.meta_path)
for _ in range(2):
    accel_bridge.activate("cpu")
    import transformer_engine.pytorch as te
    import transformer_engine_torch as tex
    from importlib.metadata import version
    te.Linear
    print(te.__file__.count("accel_bridge"), version("transformer_engine"), tex.DType.kFloat32)
    print("NVTE_PROJECT_BUILDING" in os.environ)
    accel_bridge.deactivate()
    del te, tex
print(sys.meta_path == meta_path, [n for n in sys.modules if n.startswith("transformer_engine")])
print({name for name in os.environ if name.startswith("NVTE")})
"""


@pytest.mark.slow
def test_activation_and_its_undo(forked: Python) -> None:
    done, installed = forked("-c", ACTIVATED), version("transformer_engine")
    row = [f"0 {installed} 4", "False"]
    assert done.stdout.splitlines() == [*row, *row, "True []", "set()"], done.stderr[-2000:]
    assert done.stderr.count(f"transformer_engine {installed}: NVIDIA's Python over") == 2


def test_a_release_that_is_too_old_is_refused_in_three_parts() -> None:
    with pytest.raises(releases.ReleaseError) as caught:
        releases.check("2.7.0")
    assert "evidence: it serves 2.8 to 2.20" in str(caught.value)
    assert "next:     pip install --upgrade transformer_engine" in str(caught.value)
    assert releases.check("2.8.0") is releases.check("2.20.2") is None
    assert "newer than what was tested" in str(releases.check("3.1"))


def test_what_is_not_served_is_refused_by_name_when_it_is_called(tex: ModuleType) -> None:
    function = tex.newton_schulz
    with pytest.raises(NotImplementedError, match="newton_schulz is not served") as caught:
        function(1)
    assert "next:" in str(caught.value)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tex.nothing


def test_no_module_of_the_package_has_the_name_of_a_function() -> None:
    """Whoever imported the module first would get it for the function."""
    modules = {path.stem for path in Path(str(extension.__file__)).parent.iterdir()}
    assert not modules & set(extension.NAMES)


def test_enumerations_are_pickled_as_the_compiled_extensions(tex: ModuleType) -> None:
    data = pickle.dumps(tex.DType.kFloat8E4M3)
    assert b"accel_bridge" not in data
    assert pickle.loads(data) is tex.DType.kFloat8E4M3


def calls(directory: Path) -> Iterator[tuple[str, str, ast.Call | None]]:
    """(name, file, the call where it is one) of all that NVIDIA's Python asks of the extension."""
    for file in directory.rglob("*.py"):
        if file.name == "onnx_extensions.py":
            continue  # `tex` is a set of operators there
        text = file.read_text(encoding="utf-8")
        if "transformer_engine_torch" not in text and "tex." not in text:
            continue
        called = set()
        for node in ast.walk(ast.parse(text)):
            function = node.func if isinstance(node, ast.Call) else node
            if not isinstance(function, ast.Attribute) or function in called:
                continue
            if isinstance(function.value, ast.Name) and function.value.id == "tex":
                called.add(function)
                yield function.attr, file.name, node if isinstance(node, ast.Call) else None


def test_every_call_of_nvidias_python_binds(te: ModuleType, tex: ModuleType) -> None:
    """Names and numbers of arguments, read from the wheel's text."""
    wrong = []
    for name, file, call in calls(Path(str(te.__file__)).parent):
        if name not in extension.NAMES:
            wrong += [] if name in NOT_THE_EXTENSIONS else [f"{file}: {name} is unknown"]
            continue
        starred = call is not None and (
            any(isinstance(one, ast.Starred) for one in call.args)
            or any(one.arg is None for one in call.keywords)
        )
        function = getattr(tex, name)
        if call is None or starred or isinstance(function, type) or not extension.served(name):
            continue
        try:
            inspect.signature(function).bind(
                *call.args, **{str(one.arg): one.value for one in call.keywords}
            )
        except TypeError as error:
            wrong.append(f"{file}:{call.lineno}: {name}: {error}")
    assert wrong == []


def test_a_call_that_does_not_bind_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("tex.generic_gemm(1, 2)\ntex.fresh\n")
    found = sorted((name, call is not None) for name, _, call in calls(tmp_path))
    assert found == [("fresh", False), ("generic_gemm", True)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("incremental", [True, False])
def test_outputs_of_a_ring_are_summed_as_each_release_asks(
    tex: ModuleType, packed: bool, incremental: bool
) -> None:
    """From 2.20 on the output is weighed anew at each step, before only at the end."""
    torch.manual_seed(1)
    outputs, sums = torch.randn(2, 8, 2, 3), torch.randn(2, 2, 8)
    whole = sums.logsumexp(0)
    wanted = (outputs * (sums - whole).exp().transpose(1, 2).unsqueeze(-1)).sum(0)
    cu_seqlens = torch.tensor([0, 4, 8], dtype=torch.int32)

    def formed(lse: torch.Tensor) -> torch.Tensor:
        return lse if packed else lse.view(2, 2, 4).transpose(0, 1).contiguous()

    rest = (cu_seqlens, False, packed)
    if incremental:
        out = outputs[0].clone()
        steps = ((outputs[1], formed(sums[0]), formed(whole), formed(sums[1])),)
    else:
        out = torch.zeros(8, 2, 3)
        steps = tuple((outputs[i], formed(whole), formed(sums[i])) for i in (0, 1))  # type: ignore[assignment]
    for step in steps:
        tex.thd_out_correction(out, *step, *rest)
    torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize("layer", ["Linear", "LayerNormLinear", "LayerNormMLP", "RMSNorm"])
def test_layers_run_on_fake_tensors(te: ModuleType, layer: str) -> None:
    """No value is read: ``rehearse`` stands on it."""
    sizes = {"RMSNorm": (16,), "LayerNormMLP": (16, 32)}.get(layer, (16, 32))
    with FakeTensorMode():
        module = getattr(te, layer)(*sizes, params_dtype=torch.bfloat16, device="cuda")
        x = torch.randn(4, 2, 16, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        module(x).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


def test_the_exporter_is_explained_without_onnxscript(te: ModuleType) -> None:
    if importlib.util.find_spec("onnxscript") is not None:
        pytest.skip("onnxscript is installed")
    module = importlib.import_module("transformer_engine.pytorch.onnx_extensions")
    with pytest.raises(NotImplementedError, match="pip install onnxscript"):
        module.onnx_gemm(1, 2, 3)


def test_a_broken_wheel_is_not_left_to_an_import(forked: Python, site: Site) -> None:
    """Excluded, it is hidden: NVIDIA's own check would raise what Megatron does not expect."""
    code = (
        "import accel_bridge\naccel_bridge.activate('cpu')\n"
        "try:\n    import transformer_engine\nexcept ImportError as error:\n    print('absent')\n"
    )
    done = forked("-c", code, ACCEL_BRIDGE_LIBRARIES="-transformer_engine")
    assert done.stdout == "absent\n", done.stderr[-2000:]
    assert "NVTE_PROJECT_BUILDING" not in os.environ
