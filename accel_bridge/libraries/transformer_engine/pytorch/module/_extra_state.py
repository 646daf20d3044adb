"""Modules' extra state in checkpoints: a pickle in a byte tensor, of known classes only."""

from __future__ import annotations

import io
import pickle
from enum import Enum
from typing import Any, Final

import torch

from accel_bridge import BridgeError

#: What the pickle of a recipe, of tensors and of plain values names.
_KNOWN: Final = frozenset(
    {
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "set"),
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch", "device"),
        ("torch._utils", "_rebuild_tensor_v2"),
    }
)
_RECIPES: Final = f"{__name__.partition('.')[0]}.common.recipe"


class ExtraStateError(BridgeError, pickle.UnpicklingError):
    """A checkpoint's extra state names what is not loaded."""


class _Unpickler(pickle.Unpickler):
    """Loads recipes, tensors and plain values; nothing that runs other code."""

    def find_class(self, module: str, name: str) -> Any:
        # Whoever put a loader in the place of torch's stands in the pickle; it is never called.
        if name.endswith("load_from_bytes"):
            return _storage
        if (module, name) == ("builtins", "getattr"):
            return _member
        dtype = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in _KNOWN or isinstance(dtype, torch.dtype):
            return super().find_class(module, name)
        if module == _RECIPES:
            try:
                found = super().find_class(module, name)
            except AttributeError:
                found = None
            if isinstance(found, type):
                return found
        raise ExtraStateError(
            f"a module's extra state names {module}.{name}, which is not loaded",
            evidence="a checkpoint's _extra_state holds an FP8 recipe and scales; this one was "
            "written by a newer Transformer Engine, or is not one",
            next="remove the _extra_state keys from the state dict (FP8 then starts with fresh "
            "scales), or load it where that version is installed",
        )


def _member(kind: type, name: str) -> Any:
    """Some Pythons pickle a member of an enumeration as ``getattr(class, name)``."""
    if not issubclass(kind, Enum):
        raise pickle.UnpicklingError(f"getattr of {kind!r} in a module's extra state")
    return kind[name]


def _storage(content: bytes) -> Any:
    """torch's own loader of a storage in a pickle would run any code that the storage names."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def encode(state: dict[str, Any]) -> torch.Tensor:
    """The state as a uint8 tensor on the host."""
    return torch.frombuffer(bytearray(pickle.dumps(state)), dtype=torch.uint8)


def decode(state: torch.Tensor | io.BytesIO | None) -> dict[str, Any] | None:
    """What :func:`encode` was given; None for no state.

    :param state: uint8 tensor; Transformer Engine before 2.0 wrote a ``BytesIO``.
    :raises ExtraStateError: the pickle names a class that is neither a recipe nor a tensor's.
    :raises RuntimeError: a state of another type.
    """
    if state is None:
        return None
    if isinstance(state, torch.Tensor):
        if not state.numel():
            return None
        content = state.detach().cpu().numpy().tobytes()
        loaded: dict[str, Any] | None = _Unpickler(io.BytesIO(content)).load()
        return loaded
    if isinstance(state, io.BytesIO):
        state.seek(0)
        old: dict[str, Any] | None = torch.load(state, map_location="cpu", weights_only=True)
        return old
    raise RuntimeError("Unsupported checkpoint format.")


def forgive_missing(module: torch.nn.Module, keys: Any) -> None:
    """Attention's own extra state may be missing: checkpoints without FP8 have none."""
    keys.missing_keys[:] = [
        key for key in keys.missing_keys if "core_attention._extra_state" not in key
    ]
