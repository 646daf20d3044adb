"""What a step is made of: kernels by their names, arithmetic by the arguments."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def test_kernels_and_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("step_parts", "training_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import step_parts
    import training_models

    kernels = [
        ("nvjet_sm90_tst_256x128_64x4", 0.0, 1000.0),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", 500.0, 2000.0),  # beside it
        ("_quantize_groups", 3000.0, 3500.0),
        ("_add_scaled_products", 3500.0, 4000.0),
        ("void multi_tensor_apply_kernel<TensorListMetadata>", 4000.0, 4100.0),
        ("ncclDevKernel_AllReduce", 4100.0, 4200.0),
        ("_forward", 4200.0, 4400.0),
    ]
    found = step_parts.parts(kernels, 2)
    assert found == {
        "device": 1.7,
        "communication": 0.05,
        "attention": 0.75,
        "products": 0.75,
        "casts": 0.25,
        "optimizer": 0.05,
        "rest": 0.1,
        "launches": 3,
    }
    gaps = step_parts._gaps(kernels)
    assert gaps == [[2.0, 1000.0, kernels[1][0], "_quantize_groups"]]
    arguments = training_models.COMMON + training_models.MODELS["l4-h4096"]
    work = step_parts.operations(arguments)
    # 4 layers of 4 h^2 and 3 h ffn, and the words, six operations for each of 32768 tokens.
    weights = 4 * (4 * 4096**2 + 3 * 4096 * 14336) + 4096 * 50304
    assert work["products"] == pytest.approx(6 * 32768 * weights / 1e12)
    assert work["attention"] == pytest.approx(14 * 4 * 8 * 4096 * 4097 / 2 * 4096 / 1e12)
    window = training_models.COMMON + training_models.MODELS["l4-h4096-window-1024"]
    assert step_parts.operations(window)["attention"] < 0.45 * work["attention"]
    assert step_parts.operations(training_models.MODELS["mla-moe"]) == {}
