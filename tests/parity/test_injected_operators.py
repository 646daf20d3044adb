"""A wrong operator, on two ranks: from recordings to capsules to the line, by files alone.

``python tests/parity/test_injected_operators.py [ERROR ...]`` does it for all twelve, or for some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accel_bridge.apps.capsules.replayed import diverge, judge
from accel_bridge.apps.testing import MODEL, MOE, Command, Record
from accel_bridge.recording import read_capsule

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
    "norm": (RUN, "rms_norm", "apply_normalization"),
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


def injected(error: str) -> dict[str, str]:
    """The environment of a run with that error."""
    return {
        "INJECTED_OPERATOR": error,
        "PYTHONPATH": str(TESTS),
        "ACCEL_BRIDGE_PLUGINS": "parity.injected_operators",
    }


def test_a_wrong_operator_is_found(
    record: Record, accel_bridge_command: Command, tmp_path: Path
) -> None:
    arguments, operator, line = EXPECTED["swiglu"]
    variables = injected("swiglu")
    plugins = variables.pop("ACCEL_BRIDGE_PLUGINS")
    good = record(*arguments, processes=2)
    bad = record(*arguments, processes=2, plugins=plugins, environ=variables)
    capsules = []
    for name, environ in (("good", {}), ("bad", injected("swiglu"))):
        path = tmp_path / f"{name}.capsule"
        done = accel_bridge_command(
            *("parity", "capsule", str(good), str(bad), "--out", str(path)),
            *("--nproc-per-node", "2", "--", *MODEL, *arguments),
            environ={"ACCEL_BRIDGE_BACKEND": "cpu", **environ},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        capsules.append(read_capsule(path))
    found = diverge(*capsules)
    assert (found.why, found.b.name) == ("only B runs it", operator)
    assert line in found.b.site
    for capsule in capsules:  # each computes rightly what it computes
        judged = judge(capsule)
        assert judged.findings == ()
        assert judged.judged > 100


def main() -> int:
    """Where each error was found, and in how many seconds."""
    missed = 0
    good: dict[tuple[str, ...], Path] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)

        def run(*words: object, environ: dict[str, str] | None = None) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "accel_bridge", "parity", *map(str, words)],
                env={**os.environ, "ACCEL_BRIDGE_BACKEND": "cpu", **(environ or {})},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode in (0, 1), done.stderr[-3000:]
            return done.stdout

        for error in sys.argv[1:] or EXPECTED:
            arguments, operator, line = EXPECTED[error]
            model = ("--nproc-per-node", "2", "--", *MODEL, *arguments)
            a = good.setdefault(arguments, directory / f"{len(good)}.rec")
            if not a.exists():
                run("record", "--out", a, *model)
            b = directory / f"{error}.rec"
            run("record", "--out", b, *model, environ=injected(error))
            capsules = [directory / f"{error}.{kind}.capsule" for kind in ("a", "b")]
            run("capsule", a, b, "--out", capsules[0], *model)
            run("capsule", a, b, "--out", capsules[1], *model, environ=injected(error))
            began = time.monotonic()
            found = json.loads(run("replay", *capsules, "--json"))
            seconds = time.monotonic() - began
            clean = json.loads(run("replay", capsules[0], "--json"))["passed"]
            right = clean and found["operator"] == operator and line in (found["site"] or "")
            missed += not right
            print(
                f"{error:20} {'found' if right else 'MISSED'} {found['operator']} in "
                f"{found['in']} ({found['site']}), {seconds:.1f} s, clean {clean}",
                flush=True,
            )
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
