"""A wrong operator, on two ranks: from recordings to capsules to the line, by files alone.

One in every run; `make conformance` has all twelve.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge.apps.capsules.replayed import as_json, diverge, judge
from accel_bridge.apps.testing import MODEL, MOE, Command, Record
from accel_bridge.recording import read_capsule
from parity.injected_operators import PATCHES

TESTS = Path(__file__).parents[1]
#: A model of today's kind.
RUN = tuple(
    "--num-layers 2 --global-batch-size 4 --train-iters 2 --lr-decay-iters 2 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --position-embedding-type rope".split()
)
TP2 = (*RUN, "--tensor-model-parallel-size", "2")
FP8 = (*RUN, *"--bf16 --fp8-format hybrid --fp8-recipe tensorwise".split())
EXPERTS = (*RUN, *MOE, *"--moe-permute-fusion --expert-model-parallel-size 2".split())

#: Error -> (Megatron's arguments, operator, what the source line has, or the kernel).
EXPECTED: dict[str, tuple[tuple[str, ...], str, str]] = {
    "attention": (RUN, "attention", "attend"),
    "norm": (RUN, "norm_forward", "linear.py"),
    "rotary": (RUN, "rotary", "rope.py"),
    "adamw": (RUN, "adamw", ""),
    "fp8-scale": (FP8, "scaled_matmul", ""),
    "permutation": (EXPERTS, "token_permute", ""),
    "router": (EXPERTS, "aten.mul.Tensor", "injected_operators.py"),
    "swiglu": (RUN, "aten.mul.Tensor", "injected_operators.py"),
    "cross-entropy": (RUN, "aten.mul.Tensor", "injected_operators.py"),
    "embedding": (RUN, "aten.mul.Tensor", "injected_operators.py"),
    "gradient-reduction": (RUN, "aten.mul_.Tensor", "injected_operators.py"),
    "collective": (TP2, "c10d.allreduce_.default", ""),
}


def marks(error: str) -> list[pytest.MarkDecorator]:
    """One runs with every suite."""
    return [] if error == "swiglu" else [pytest.mark.conformance]


@pytest.mark.parametrize("error", [pytest.param(one, marks=marks(one)) for one in EXPECTED])
def test_a_wrong_operator_is_found(
    error: str, record: Record, accel_bridge_command: Command, tmp_path: Path
) -> None:
    arguments, operator, line = EXPECTED[error]
    plugins = "parity.injected_operators"
    injected = {"INJECTED_OPERATOR": error, "PYTHONPATH": str(TESTS)}
    good = record(*arguments, processes=2)
    bad = record(*arguments, processes=2, plugins=plugins, environ=injected)
    capsules = []
    for name, environ in (
        ("good", {}),
        ("bad", {"ACCEL_BRIDGE_PLUGINS": plugins, **injected}),
    ):
        path = tmp_path / f"{name}.capsule"
        done = accel_bridge_command(
            *("parity", "capsule", str(good), str(bad), "--out", str(path)),
            *("--nproc-per-node", "2", "--", *MODEL, *arguments),
            environ={"ACCEL_BRIDGE_BACKEND": "cpu", **environ},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        capsules.append(read_capsule(path))
    found = as_json(capsules[0], diverge(*capsules))
    assert found["operator"] == operator, found
    assert line in found["site"], found
    if error == "swiglu":
        assert found["why"] == "only B runs it"
    for capsule in capsules[: 2 if error in PATCHES else 1]:  # each computes rightly what it does
        judged = judge(capsule)
        assert judged.findings == ()
        assert judged.judged > (100 if error == "swiglu" else 0)
