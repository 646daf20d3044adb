"""Puts the extension below NVIDIA's own Transformer Engine, of which no file is edited or copied.

Three things of its Python need a GPU as they are imported: the shared objects that
``transformer_engine.common`` loads, Triton's kernels, and the exporter for ONNX.

From 2.20 on it refuses extra states in checkpoints that are pickled, unless the user trusts the
file. Those that hold nothing but a recipe, tensors and plain values need no trust.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from accel_bridge.device.backend import Features
from accel_bridge.libraries.transformer_engine_torch import releases
from accel_bridge.process import log
from accel_bridge.process.journal import Journal

#: What the pickle of tensors and of plain values names.
_KNOWN: Final = frozenset(
    {
        ("builtins", "bytearray"),
        ("builtins", "set"),
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch", "device"),
        ("torch._utils", "_rebuild_tensor_v2"),
    }
)
_RECIPES: Final = "transformer_engine.common.recipe"


class _Unpickler(pickle.Unpickler):
    """Loads recipes, tensors and plain values."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if (module, name) == ("builtins", "getattr"):
            return _member
        dtype = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in _KNOWN or isinstance(dtype, torch.dtype):
            return super().find_class(module, name)
        # Frameworks have recipes and loaders of their own; nothing is imported for a pickle.
        found = vars(sys.modules.get(module, object)).get(name)
        if found is torch.storage._load_from_bytes:
            return _storage
        if isinstance(found, type) and found.__module__ == module:
            recipe = sys.modules[_RECIPES].Recipe
            if module == _RECIPES or issubclass(found, recipe):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an extra state")


def _storage(content: bytes) -> Any:
    """torch's own loader of a storage in a pickle would run any code that the storage names."""
    import torch

    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _member(kind: type, name: str) -> Any:
    """Some Pythons pickle a member of an enumeration as ``getattr(class, name)``."""
    if not issubclass(kind, Enum):
        raise pickle.UnpicklingError(f"getattr of {kind!r}")
    return kind[name]


def runs_no_code(state: bytes) -> bool:
    """Whether a pickle names nothing but recipes, tensors and plain values."""
    try:
        _Unpickler(io.BytesIO(state)).load()
    except Exception:
        return False
    return True


def accept_extra_states(module: Any) -> None:
    """Let Transformer Engine's module of these states take the pickles that run no code."""
    upstream = module.should_load_extra_state_pickle

    @functools.wraps(upstream)
    def should_load_extra_state_pickle(data: bytes, context: str) -> bool:
        try:
            return bool(upstream(data, context))
        except RuntimeError:
            if runs_no_code(data):
                return True
            raise

    module.should_load_extra_state_pickle = should_load_extra_state_pickle


EXTENSION: Final = "transformer_engine_torch"
ROOTS: Final = ("transformer_engine", EXTENSION)

_DIRECTORY: Final = Path(__file__).parent
_TRITON: Final = "transformer_engine.pytorch.triton"
_CHOICE: Final = "transformer_engine.pytorch.attention.dot_product_attention.utils"
_STORAGES: Final = "transformer_engine.pytorch.tensor.storage"
_ONNX: Final = "transformer_engine.pytorch.onnx_extensions"
#: Modules that are replaced where Triton has no device, or onnxscript is not installed -> their
#: names in :mod:`.triton`; without names each one refuses.
_REPLACED: Final = {
    f"{_TRITON}.cross_entropy": "cross_entropy_forward cross_entropy_backward",
    f"{_TRITON}.grouped_dbias_dscales": "compute_grouped_dbias compute_grouped_dbias_dscales",
    f"{_TRITON}.pad": "pad_columnwise_scale_inv",
    f"{_TRITON}.permutation": "make_chunk_sort_map make_row_id_map permute_with_mask_map "
    "sort_chunks_by_map unpermute_with_mask_map unpermute_with_mask_map_bwd_with_merging_probs",
    f"{_TRITON}.mhc": "",
    _ONNX: "",
}
#: Transformer Engine's own switch: its build imports the package before anything is compiled.
_BUILDING: Final = "NVTE_PROJECT_BUILDING"
_RELEASE_BUILD: Final = "NVTE_RELEASE_BUILD"
#: What a device without CUDA answers: Hopper's, whose every format the extension computes.
_CAPABILITY: Final = (9, 0)


class ExtensionLoader:
    """Finds NVIDIA's Python, completed by the extension.

    :param features: of the device: where Triton compiles for it, Transformer Engine's own kernels
        run, and its compute capability is its own.
    """

    def __init__(self, features: Features) -> None:
        self._triton = features.triton
        self._after: dict[str, Callable[[Any], None]] = {
            "transformer_engine.common": _common,
            _CHOICE: _attention_choice,
            "transformer_engine.pytorch.cpp_extensions.gemm": _gemm,
            "transformer_engine.pytorch.module.base": _base,
            "transformer_engine.pytorch._extra_state": accept_extra_states,
        }
        if not features.triton:
            self._after["transformer_engine.pytorch.utils"] = _utils
            self._after["transformer_engine.pytorch.attention.custom_ops"] = _custom_ops
            for name in ("quantization", "fp8"):  # fp8 in 2.8
                self._after[f"transformer_engine.pytorch.{name}"] = _quantization
            self._after[f"{_STORAGES}.mxfp8_tensor_storage"] = _mxfp8_storage

    def prepare(self, journal: Journal) -> None:
        """What Transformer Engine reads from the environment, and a check of its release.

        :raises ReleaseError: the installed one is older than the oldest that is served.
        """
        warning = releases.check(releases.installed())
        if warning is not None:
            log.warn(warning)
        if not self._triton and "NVTE_TORCH_COMPILE" not in os.environ:
            journal.set_item(os.environ, "NVTE_TORCH_COMPILE", "0")

    def find_spec(self, fullname: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
        """The module as it is to be imported; None where it needs nothing of us."""
        if fullname == EXTENSION:
            return ModuleSpec(fullname, _Alias(), is_package=True)
        missing = find_spec("onnxscript") is None if fullname == _ONNX else not self._triton
        if fullname in _REPLACED and missing:
            return spec_from_file_location(fullname, _DIRECTORY / "triton.py", loader=_Replacing())
        if fullname not in self._after:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Adapting(spec.loader, self._after[fullname])
        return spec


class _Alias(Loader):
    """Gives the extension's package its real name beside its own."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Extension(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Extension(ModuleType):
    """``transformer_engine_torch``: its names are those of this package."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return list(import_module(f"accel_bridge.libraries.{EXTENSION}").NAMES)
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"accel_bridge.libraries.{EXTENSION}"), name)
        vars(self)[name] = value
        return value

    def __dir__(self) -> list[str]:
        return dir(import_module(f"accel_bridge.libraries.{EXTENSION}"))


class _Replacing(Loader):
    """Fills a module with names of :mod:`.triton`."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = import_module(f"accel_bridge.libraries.{EXTENSION}.triton")
        names = _REPLACED[module.__name__].split()
        vars(module).update({name: getattr(source, name) for name in names})
        if not names:
            vars(module)["__getattr__"] = functools.partial(source.refused, module.__name__)


class _Adapting(Loader):
    """Executes a module with its own loader, and adapts it before anyone copies its names."""

    def __init__(self, loader: Any, adapt: Callable[[Any], None]) -> None:
        self._loader = loader
        self._adapt = adapt

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        before = {name: os.environ.pop(name, None) for name in (_BUILDING, _RELEASE_BUILD)}
        os.environ[_BUILDING] = "1"
        try:
            self._loader.exec_module(module)
        finally:
            del os.environ[_BUILDING]
            os.environ.update({name: value for name, value in before.items() if value is not None})
        self._adapt(module)

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_adapt"):  # not set yet: copied or unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)


def _common(module: Any) -> None:
    """There is no shared object to look for: the extension is a module like any other."""

    def load_framework_extension(framework: str) -> None:
        import_module(f"transformer_engine_{framework}")

    module.load_framework_extension = load_framework_extension


def _attention_choice(module: Any) -> None:
    """A fake tensor stands for a plain one: a rehearsal takes a training's attention."""
    original = module.get_attention_backend

    @functools.wraps(original)
    def get_attention_backend(attention_params: Any) -> Any:
        from torch import Tensor
        from torch._subclasses.fake_tensor import FakeTensor

        if attention_params.qkv_type is FakeTensor:
            attention_params = replace(attention_params, qkv_type=Tensor)
        return original(attention_params)

    module.get_attention_backend = get_attention_backend


def _gemm(module: Any) -> None:
    """The extension's GEMMs need no workspace: 32 MiB for each of cuBLAS's streams."""
    module.get_cublas_workspace_size_bytes = lambda: 0


def _base(module: Any) -> None:
    """Gradients that nobody reads take no memory."""
    from accel_bridge.libraries.main_grad import get_dummy_wgrad

    module.get_dummy_wgrad = get_dummy_wgrad


def _custom_ops(module: Any) -> None:
    """Operators that are registered for CUDA alone run on every device."""
    from torch._library.custom_ops import CustomOpDef

    for operator in vars(module).values():
        if isinstance(operator, CustomOpDef):
            operator.register_kernel(None)(operator._init_fn)


def _utils(module: Any) -> None:
    module.get_device_compute_capability = lambda: _CAPABILITY


def _mxfp8_storage(module: Any) -> None:
    """What is not on CUDA is moved there to be dequantized: without end where no CUDA is."""

    def forward(_ctx: Any, tensor: Any, dtype: Any) -> Any:
        from accel_bridge.libraries.transformer_engine_torch._tensors import dequantized

        return dequantized(tensor, dtype)

    module._FromMXFP8Func.forward = staticmethod(forward)


def _quantization(module: Any) -> None:
    """MXFP8 needs Blackwell on a GPU; here its reference computes it, where it is asked for."""
    from accel_bridge.kernels import active

    def check_mxfp8_support() -> tuple[bool, str]:
        active.say_once("MXFP8 is emulated: the device has no such format")
        return True, ""

    if hasattr(module, "check_mxfp8_support"):
        module.check_mxfp8_support = check_mxfp8_support

    def get_default_fp8_recipe() -> Any:  # Hopper's
        return import_module("transformer_engine.common.recipe").DelayedScaling()

    module.get_default_fp8_recipe = get_default_fp8_recipe
