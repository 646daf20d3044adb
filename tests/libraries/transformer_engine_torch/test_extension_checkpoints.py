"""State dictionaries move between NVIDIA's Python over the extension and accel_bridge's modules."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType

import pytest
import torch
from plugin_site import Python

SCRIPT = """
import sys
import accel_bridge.auto
import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

torch.manual_seed(1)
torch.set_default_dtype(torch.bfloat16)
model = torch.nn.Sequential(
    te.LayerNormLinear(32, 64, normalization="RMSNorm"), te.Linear(64, 32), te.LayerNorm(32)
)
x = torch.randn(16, 32, device="cuda")

def step(model):
    with te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling(amax_history_len=4)):
        return model(x)

way, file = sys.argv[1:]
if way == "save":
    step(model).sum().backward()
    scales = model[0].fp8_meta["scaling_fwd"].scale
    torch.save({"model": model.state_dict(), "output": step(model), "scale": scales}, file)
else:
    saved = torch.load(file, weights_only=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    print(model.load_state_dict(saved["model"]))
    found = step(model)
    print(torch.equal(model[0].fp8_meta["scaling_fwd"].scale, saved["scale"]))
    print(float((found - saved["output"]).abs().max() / saved["output"].abs().max()) < 0.02)
"""


@pytest.mark.slow
@pytest.mark.parametrize("roads", [("modules", "extension"), ("extension", "modules")])
def test_states_of_one_load_in_the_other(
    python: Python, tmp_path: Path, installed: str, roads: tuple[str, str]
) -> None:
    """Weights, delayed scales and their histories; the same output."""
    (tmp_path / "script.py").write_text(SCRIPT)
    for way, road in zip(("save", "load"), roads, strict=True):
        done = python(
            *(str(tmp_path / "script.py"), way, str(tmp_path / "state.pt")),
            ACCEL_BRIDGE_TE=road,
            ACCEL_BRIDGE_BACKEND="cpu",
            # From 2.20 on NVIDIA's Python asks for it: states of delayed scaling are pickles.
            NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE="1",
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["<All keys matched successfully>", "True", "True"]


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
    layer = te.Linear(32, 16, device="cuda")
    monkeypatch.delenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", raising=False)
    with pytest.raises(RuntimeError, match="NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"):
        layer.set_extra_state(file)
    monkeypatch.setenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
    layer.set_extra_state(file)
    for way in ("fwd", "bwd"):
        found = layer.fp8_meta[f"scaling_{way}"]
        assert torch.equal(found.scale.cpu(), state[f"scale_{way}"])
        assert torch.equal(found.amax_history.cpu(), state[f"amax_history_{way}"])
