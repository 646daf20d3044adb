"""Extra states of checkpoints: others' files load, and what is no state runs no code."""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from accel_bridge.libraries.transformer_engine_torch import _loader

pytestmark = pytest.mark.usefixtures("on_device")

#: Written by accel_bridge 0.1's shim for Transformer Engine 2.13, after a step in FP8.
SHIM_STATES = Path(__file__).with_name("shim.pt")


@pytest.fixture(autouse=True)
def _no_word_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", raising=False)


def test_states_of_the_former_shim(te: ModuleType) -> None:
    """Weights, delayed scales and their histories; the same output, and the same written again."""
    from transformer_engine.common.recipe import DelayedScaling

    saved = torch.load(SHIM_STATES, weights_only=False)
    options = {"params_dtype": torch.bfloat16}
    model: Any = torch.nn.Sequential(
        te.LayerNormLinear(16, 32, normalization="RMSNorm", **options),
        te.Linear(32, 16, **options),
        te.LayerNorm(16, **options),
    )
    for _ in range(2):
        assert not any(model.load_state_dict(saved["model"]))
        assert torch.equal(model[0].fp8_meta["scaling_fwd"].scale.cpu(), saved["scale"])
        saved["model"] = model.state_dict()
    with te.autocast(enabled=True, recipe=DelayedScaling(amax_history_len=4)):
        found = model(saved["input"].cuda()).cpu()
    assert (found - saved["output"]).abs().max() < 0.02 * saved["output"].abs().max()


def test_recipes_and_loaders_of_a_framework(
    te: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron's: a recipe that inherits, and a loader in the place of torch's."""
    from transformer_engine.common.recipe import DelayedScaling

    here = sys.modules[__name__]
    own = type("Own", (DelayedScaling,), {"__module__": __name__})
    monkeypatch.setattr(here, "Own", own, raising=False)
    monkeypatch.setattr(here, "load", lambda content: None, raising=False)
    monkeypatch.setattr(here.load, "__qualname__", "load")  # type: ignore[attr-defined]
    named = pickle.dumps({"recipe": own(), "scale": Call(here.load, b"")})  # type: ignore[attr-defined]
    assert not _loader.runs_no_code(named)
    content = io.BytesIO()
    torch.save(torch.ones(1, device="cpu"), content)
    monkeypatch.setattr(torch.storage, "_load_from_bytes", here.load)  # type: ignore[attr-defined]
    states = {"recipe": own(), "scale": Call(here.load, content.getvalue())}  # type: ignore[attr-defined]
    assert _loader.runs_no_code(pickle.dumps(states))


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def named(module: str, name: str) -> bytes:
    """A pickle that calls a function by its name."""
    words = (b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    return b"\x80\x04" + b"".join(words) + b"\x93(\x8c\x04truetR."


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"recipe": Call(os.system, "touch executed")}),
        pickle.dumps(Call(getattr, str, "format")),
        pickle.dumps(Call(torch.storage._load_from_bytes, pickle.dumps(Call(os.system, "true")))),
        named("transformer_engine.common.recipe", "os.system"),
        named("transformer_engine.common.recipe", "FutureScaling"),
        named("transformer_engine.pytorch.future", "Scaling"),
        b"no pickle at all",
    ],
    ids=["call", "member", "storage", "dotted", "newer", "module", "noise"],
)
def test_only_known_classes_are_loaded(
    te: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    layer = te.Linear(32, 16)
    state = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"):
        layer.set_extra_state(state)
    assert not any(tmp_path.iterdir())


def test_a_state_of_bytes_loads(te: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Transformer Engine 1 wrote it; without the user's word it is refused."""
    state = {
        "scale_fwd": torch.full((3,), 2.0),
        "scale_inv_fwd": torch.full((3,), 0.5),
        "amax_history_fwd": torch.ones(1024, 3),
        "scale_bwd": torch.full((2,), 4.0),
        "scale_inv_bwd": torch.full((2,), 0.25),
        "amax_history_bwd": torch.ones(1024, 2),
        "extra_fp8_variables": {"num_gemms": 1, "fp8_checkpoint": True},
    }
    file = io.BytesIO()
    torch.save(state, file)
    layer = te.Linear(32, 16)
    with pytest.raises(RuntimeError, match="NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"):
        layer.set_extra_state(file)
    monkeypatch.setenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
    layer.set_extra_state(file)
    for way in ("fwd", "bwd"):
        found = layer.fp8_meta[f"scaling_{way}"]
        assert torch.equal(found.scale, state[f"scale_{way}"])
        assert torch.equal(found.amax_history, state[f"amax_history_{way}"])
