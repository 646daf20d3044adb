"""The rule by which the real Transformer Engine and the shim are compared on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import te_compare as compare
import te_fp8_training as training


def entry(output: float, gradient: float, mean: float = 1e-4) -> dict[str, Any]:
    errors = {"output": [output, mean, 4.0], "grad x": [gradient, mean, 4.0]}
    return {"dtype": "bfloat16", "errors": errors}


@pytest.mark.parametrize(
    ("output", "gradient", "expected"),
    [(0.03, 0.04, "PASS"), (0.06, 0.01, "FAIL"), (0.01, 0.08, "FAIL")],
)
def test_errors_are_compared_part_by_part(output: float, gradient: float, expected: str) -> None:
    assert compare.verdict("Linear", entry(0.01, 0.01), entry(output, gradient))[0] == expected


def test_one_rounding_at_a_kink_is_no_failure_but_many_are() -> None:
    real, ours = entry(0.01, 0.01), entry(3.0, 3.0)
    assert compare.verdict("LayerNormMLP[relu]", real, ours)[0] == "PASS"
    assert compare.verdict("LayerNormMLP[gelu]", real, ours)[0] == "FAIL"
    assert compare.verdict("LayerNormMLP[relu]", real, entry(3.0, 3.0, 0.5))[0] == "FAIL"


def test_what_only_the_shim_refuses_is_a_failure() -> None:
    refused = {"dtype": "bfloat16", "refused": "no kernel"}
    assert compare.verdict("Linear", entry(0.01, 0.01), refused)[0] == "FAIL"
    assert compare.verdict("Linear", refused, entry(0.01, 0.01))[0] == "skipped"
    assert compare.verdict("Linear", None, entry(0.01, 0.01))[0] == "skipped"


def test_a_pass_may_not_wait_for_the_device_where_the_real_one_does_not() -> None:
    real, ours = entry(0.01, 0.01), entry(0.01, 0.01)
    for real["waits"], ours["waits"], expected in ((0, 1, "FAIL"), (1, 1, "PASS"), (0, 0, "PASS")):
        assert compare.verdict("Linear", real, ours)[0] == expected


def test_distance_from_bfloat16() -> None:
    losses = {"bfloat16": [3.0, 2.0], "delayed": [3.1, 1.7]}
    assert training.distance({"losses": losses}, "delayed") == pytest.approx(0.2)
