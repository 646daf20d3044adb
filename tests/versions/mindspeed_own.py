"""Runs MindSpeed's own training scripts: MindSpeed and our kernels, side by side, on emulated NPUs.

    python tests/versions/mindspeed_own.py MINDSPEED MEGATRON [--only SCRIPT...] [--logs FOLDER]

MINDSPEED is a checkout, MEGATRON the Megatron-LM that it is made for. Each script of its
`tests_extend` runs unedited, as `accel-bridge run -- bash SCRIPT`, in a folder with Megatron's
pretrain_gpt.py; a `torchrun` on PATH makes it small (mindspeed_rules.py, and :data:`OWN` here).
From one checkpoint, on two emulated NPUs, it trains with MindSpeed (`require`), with our own
kernels (`off`), and with these and another norm's epsilon, which must be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import mindspeed_rules as rules
from mindspeed_numbers import write_numbers

#: Script below tests_extend -> the parallel size that stays 2.
CHOSEN: Final = {
    "system_tests/feature_tests/ulysses.sh": "context",
    "system_tests/feature_tests/ulysses_allgather.sh": "context",
    "system_tests/feature_tests/hybrid.sh": "context",
    "system_tests/feature_tests/deepseek_moe.sh": "expert",
    "system_tests/feature_tests/deepseek_moe_alltoall.sh": "expert",
    "system_tests/feature_tests/megatron_moe.sh": "expert",
    "system_tests/feature_tests/deepseek_mla.sh": "tensor",
    "system_tests/llama2/pretrain_llama_pp2_dp4.sh": "pipeline",
    "system_tests/llama3/pretrain_llama3_8b_ptd.sh": "tensor",
    "system_tests/mixtral/pretrain_mixtral.sh": "expert",
}
#: What is left out beside mindspeed_rules.DROPPED: tokenizers, and what needs more stages, bf16 or
#: ATB.
OWN: Final = frozenset(
    """--tokenizer-model --vocab-file --merge-file --tokenizer-name-or-path --recompute-in-bubble
    --recompute-in-advance --enable-recompute-layers-per-pp-rank --exit-interval --finetune
    --gemm-gradient-accumulation-fusion --log-throughput --save-interval --padded-vocab-size
    --use-ascend-mc2 --use-ascend-coc --seed --num-workers --moe-grouped-gemm""".split()
)
#: The flag of each size.
SIZES: Final = {
    "tensor": "--tensor-model-parallel-size",
    "pipeline": "--pipeline-model-parallel-size",
    "expert": "--expert-model-parallel-size",
    "context": "--context-parallel-size",
}
VOCABULARY: Final = 255
TOLERANCE: Final = 1e-5
_LAUNCHER = """#!{python}
import json, os, sys
sys.path.insert(0, {here!r})
import mindspeed_own as own
words = sys.argv[1:]
at = next((i for i, word in enumerate(words) if word.endswith("pretrain_gpt.py")), None)
if at is None:
    os.execv(sys.executable, [sys.executable, *words])
words = [words[at], *own.small(words[at + 1 :], json.loads(os.environ["MINDSPEED_SMALL"]))]
start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
os.execv(sys.executable, [sys.executable, *start, *words])
"""


def small(words: Sequence[str], asked: Mapping[str, Any]) -> list[str]:
    """The command line of a script, made small.

    :param asked: ``data`` (a prefix), ``load`` and ``save`` (folders), ``parallel`` (which size is
        2), ``start`` (make the checkpoint) and ``planted``.
    """
    flags = {name: value for name, value in rules.flags_of(words) if name not in OWN}
    flags |= {"--data-path": [asked["data"]], "--save": [asked["save"]], "--load": [asked["load"]]}
    found = dict(rules.flags_of(rules.scale([w for f, v in flags.items() for w in (f, *v)], {})))
    found |= {"--tensor-model-parallel-size": ["1"], SIZES[asked["parallel"]]: ["2"]}
    found |= {
        "--tokenizer-type": ["NullTokenizer"],
        "--vocab-size": [str(VOCABULARY)],
        "--no-gradient-accumulation-fusion": [],
        "--ckpt-format": ["torch"],
        "--save-interval": ["100"],
        "--log-interval": ["1"],
        "--eval-iters": ["0"],
        "--train-iters": ["3"],
        "--finetune": [],
        "--no-load-optim": [],
        "--no-load-rng": [],
        "--no-save-optim": [],
    }
    if asked["parallel"] != "tensor":
        found.pop("--sequence-parallel", None)
    changed = [word for flag, values in found.items() for word in (flag, *values)]
    if asked["start"]:
        changed = rules.starting(changed, asked["save"])
    return rules.planted(changed) if asked["planted"] else changed


@dataclass(frozen=True)
class Bench:
    """A working folder with what the scripts need."""

    mindspeed: Path
    megatron: Path
    folder: Path
    logs: Path

    def prepare(self) -> None:
        """Data, the launcher, and what MindSpeed's folder has."""
        (self.folder / "tests_extend").symlink_to(self.mindspeed / "tests_extend")
        (self.folder / "pretrain_gpt.py").symlink_to(self.megatron / "pretrain_gpt.py")
        (self.folder / "bin").mkdir()
        shim = self.folder / "bin" / "torchrun"
        text = _LAUNCHER.format(python=sys.executable, here=str(Path(__file__).parent))
        shim.write_text(text, encoding="utf-8")
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
        write_numbers(self.folder, VOCABULARY)

    def run(self, script: str) -> str:
        """Train it with both; what became of it."""
        try:
            self._train(script, "start", "require", start=True)
            theirs = self._train(script, "mindspeed", "require")
            ours = self._train(script, "ours", "off")
            planted = self._train(script, "planted", "off", planted=True)
        except RuntimeError as error:
            return str(error)
        difference = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
        seen = max(abs(a - b) for a, b in zip(theirs, planted, strict=True))
        verdict = "equal" if difference <= TOLERANCE < seen else "differs"
        return f"{verdict}: {theirs}, ours differ by {difference:.1e}, planted {seen:.1e}"

    def _train(
        self, script: str, name: str, mode: str, *, start: bool = False, planted: bool = False
    ) -> list[float]:
        """Losses of the steps.

        :raises RuntimeError: it did not train.
        """
        import mindspeed_takeover

        where = self.folder / "start" / script
        asked = {
            "data": str(self.folder / "numbers_text_document"),
            "load": str(where),
            "save": str(where if start else self.folder / "saved" / name / script),
            "parallel": CHOSEN.get(script, "tensor"),
            "start": start,
            "planted": planted,
        }
        bridge = [sys.executable, "-m", "accel_bridge"]
        done = subprocess.run(
            [
                *(*bridge, "emulate-ascend", "--devices", "2", "--", *bridge, "run", "--"),
                *("bash", str(Path("tests_extend") / script)),
            ],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(
                    [str(self.megatron), str(self.mindspeed), os.environ.get("PYTHONPATH", "")]
                ),
                "OMP_NUM_THREADS": "1",
                "ACCEL_BRIDGE_MINDSPEED": mode,
                "MINDSPEED_SMALL": json.dumps(asked),
            },
            capture_output=True,
            text=True,
            errors="replace",
            timeout=900,
        )
        text = done.stdout + done.stderr
        (self.logs / f"{script.replace('/', '-')}-{name}.log").write_text(text, encoding="utf-8")
        losses = mindspeed_takeover.losses_of(done.stdout)
        if not losses or (mode == "require" and "MindSpeed takes over" not in text):
            said = [line for line in text.splitlines() if "Error" in line or "error:" in line]
            raise RuntimeError(f"{name}: {(said or ['no output'])[-1][-300:]}")
        return losses


def main() -> int:
    """A line for each script; status 1 where one is not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mindspeed", type=Path)
    parser.add_argument("megatron", type=Path)
    parser.add_argument("--only", nargs="+", default=list(CHOSEN))
    parser.add_argument("--logs", type=Path)
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        logs = asked.logs or Path(name) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        (Path(name) / "work").mkdir()
        bench = Bench(
            asked.mindspeed.resolve(), asked.megatron.resolve(), Path(name) / "work", logs.resolve()
        )
        bench.prepare()
        for script in asked.only:
            began = time.monotonic()
            found = bench.run(script)
            failed += not found.startswith("equal")
            print(f"{script}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
