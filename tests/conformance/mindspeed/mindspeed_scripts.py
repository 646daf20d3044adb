"""Runs training scripts of MindSpeed-LLM as they stand, made small, on the CPU and emulated NPUs.

    python tests/conformance/mindspeed/mindspeed_scripts.py CHECKOUT MEGATRON [--only SCRIPT...]
        [--ranks 1] [--warm] [--work DIRECTORY] [--json FILE] [--logs DIRECTORY]

CHECKOUT is a MindSpeed-LLM, MEGATRON a Megatron-LM with its pretrain_gpt.py. Each script of
`examples/mcore` that is named runs unedited, as `accel-bridge run -- bash SCRIPT`, in a directory
with Megatron's pretrain_gpt.py (which is posttrain_gpt.py too). mindspeed_rules.py makes it small.
From one checkpoint it trains on the CPU, on an emulated NPU, and there again
with another norm's epsilon, which must be seen. --warm saves the start of each Python: the
script then only says the words, and the run is `python -m accel_bridge.run pretrain_gpt.py WORDS`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "tests"))

import mindspeed_rules  # noqa: E402
import warm_python  # noqa: E402

from tests.preprocess.mindspeed import samples  # noqa: E402

#: What runs unless scripts are named: dense, experts, latent attention, fine-tuning, adapters,
#: packed rows.
CHOSEN = (
    "qwen3/pretrain_qwen3_0point6b_4K_ptd.sh",
    "qwen3/tune_qwen3_0point6b_4K_lora_ptd.sh",
    "qwen3_moe/pretrain_qwen3_30b_a3b_4K_ptd.sh",
    "qwen3_moe/tune_qwen3_30b_a3b_4K_full_ptd.sh",
    "deepseek3/pretrain_deepseek3_671b_4k_ptd.sh",
    "deepseek3/tune_deepseek3_671b_4k_full_ptd.sh",
    "kimi2/pretrain_kimi2_18b_4k_8p_ptd.sh",
    "llama2/pretrain_llama2_13b_ptd.sh",
    "glm45-air/pretrain_glm45_air_106b_4k_A3_ptd.sh",
    "qwen25/tune_qwen25_72b_4k_full_pack.sh",
    "seed_oss/pretrain_seed_oss_36b_ptd_2k_A3.sh",
)
#: Largest difference of a loss (nats), and of a gradient's norm relative to it.
LOSS = 1e-5
NORM = 1e-4

#: Serves as torchrun and as python: some scripts call `python -m torch.distributed.launch`.
_LAUNCHER = """#!{python}
import json, os, sys
sys.path.insert(0, {here!r})
import mindspeed_rules as rules
words = sys.argv[1:]
at = next((i for i, word in enumerate(words) if word.endswith("train_gpt.py")), None)
if at is None:
    os.execv(sys.executable, [sys.executable, *words])
asked = json.loads(os.environ["MINDSPEED_SMALL"])
small = rules.small(words[at + 1 :], asked)
if asked["note"]:
    with open(asked["note"], "w") as file:
        json.dump([words[at], small], file)
    sys.exit()
start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(asked["ranks"])]
os.execv(sys.executable, [sys.executable, *start, words[at], *small])
"""
_STEP = re.compile(r"iteration\s+\d+/.*?lm loss: ([-+.\dEe]+|nan|inf).*?grad norm: ([-+.\d]+)")


@dataclass
class Row:
    """What became of a script.

    :param losses: on the CPU, nats per token.
    :param difference: largest difference of a loss on the emulated NPU.
    :param injected: the same with the injected fault, which is ``injected_with``.
    """

    script: str
    outcome: str
    losses: list[float]
    difference: float | None
    injected: float | None
    injected_with: str
    seconds: float
    date: str
    ranks: int


@dataclass(frozen=True)
class Bench:
    """A working directory with everything that scripts need."""

    checkout: Path
    megatron: Path
    directory: Path
    logs: Path
    ranks: int
    warm: bool
    resume: bool

    @property
    def noted(self) -> Path:
        """Where a script's words go; one for each process that shares the directory."""
        return self.directory / f"noted-{os.getpid()}"

    def prepare(self) -> None:
        """Make data, tokenizer, and what a user's directory has, unless they are there."""
        if (self.directory / "logs").exists():
            return
        for name in ("pretrain_gpt.py", "posttrain_gpt.py"):
            (self.directory / name).symlink_to(self.megatron / "pretrain_gpt.py")
        (self.directory / "logs").mkdir()
        launcher = _LAUNCHER.format(python=sys.executable, here=str(Path(__file__).parent))
        (self.directory / "bin").mkdir()
        for name in ("torchrun", "python", "python3"):
            shim = self.directory / "bin" / name
            shim.write_text(launcher, encoding="utf-8")
            shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
        tokenizer = samples.write_tokenizer(self.directory / "tokenizer")
        for data, words in (
            ("plain", ["--handler-name", "GeneralPretrainHandler", "--append-eod"]),
            ("tuned", _TUNED),
            ("packed", [*_TUNED, "--pack", "--neat-pack"]),
        ):
            kind = "plain" if data == "plain" else "alpaca"
            _call(
                *(sys.executable, "-m", "accel_bridge", "preprocess", "--workers", "1"),
                *("--input", str(samples.write(kind, 200, self.directory))),
                *("--output-prefix", str(self.directory / data)),
                *("--tokenizer-type", "PretrainedFromHF"),
                *("--tokenizer-name-or-path", str(tokenizer), *words),
            )

    def run(self, script: str) -> Row:
        """Train it three times."""
        began = time.monotonic()
        error = " ".join(mindspeed_rules.INJECTED)
        today = date.today().isoformat()
        row = Row(script, "", [], None, None, error, 0.0, today, self.ranks)
        start = self.directory / "start" / script
        try:
            if not (start / "latest_checkpointed_iteration.txt").exists():
                self._train(script, "start", start=str(start))
            cpu = self._train(script, "cpu", load=str(start))
            npu = self._train(script, "npu", load=str(start), emulated=True)
            wrong = self._train(script, "injected", load=str(start), emulated=True, injected=True)
            row.losses = [loss for loss, _ in cpu]
            row.difference = worst(cpu, npu, 0)
            row.injected = worst(cpu, wrong, 0)
            norms = worst(cpu, npu, 1) / max(norm for _, norm in cpu)
            same = row.difference <= LOSS and norms <= NORM
            row.outcome = "equal" if same and row.injected > LOSS else "differs"
        except RuntimeError as error:
            row.outcome = str(error)
        row.seconds = round(time.monotonic() - began, 1)
        return row

    def _train(
        self,
        script: str,
        name: str,
        *,
        load: str = "",
        start: str = "",
        emulated: bool = False,
        injected: bool = False,
    ) -> list[tuple[float, float]]:
        """Loss and norm of each step.

        :raises RuntimeError: it did not end well.
        """
        log = self.logs / f"{script.replace('/', '-')}-{name}.log"
        if self.resume and log.exists() and (steps := _steps(log.read_text(encoding="utf-8"))):
            return steps
        source = (self.checkout / "examples/mcore" / script).read_text(encoding="utf-8")
        if "--neat-pack" in source or "--reset-attention-mask" in source:
            data = "packed" if "--is-instruction-dataset" in source else "plain"
        else:
            data = "tuned" if "--is-instruction-dataset" in source else "plain"
        prefix = str(self.directory / data) + ("_text_document" if data == "plain" else "")
        save = self.directory / "saved" / name / script
        paths = {
            "--data-path": prefix,
            "--load": load,
            "--save": str(save),
            "--tokenizer-name-or-path": str(self.directory / "tokenizer"),
        }
        asked = {
            "paths": paths,
            "ranks": self.ranks,
            "start": start,
            "injected": injected,
            "note": str(self.noted) if self.warm else "",
        }
        own = {
            "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "MINDSPEED_SMALL": json.dumps(asked),
        }
        bridge = [sys.executable, "-m", "accel_bridge"]
        before = [*bridge, "emulate-ascend", "--devices", str(self.ranks), "--"] if emulated else []
        shell = ["bash", str(self.checkout / "examples/mcore" / script)]
        command = [*before, *bridge, "run", "--", *shell]
        if self.warm:
            subprocess.run(
                shell, cwd=self.directory, env={**os.environ, **own}, capture_output=True
            )
            program, words = json.loads(self.noted.read_text(encoding="utf-8"))
            python = warm_python.interpreter(emulated=emulated)
            command = [*before, python, "-m", "accel_bridge.run", program, *words]
            own = {}
        done = subprocess.run(
            command,
            cwd=self.directory,
            env={
                **os.environ,
                **own,
                "PYTHONPATH": f"{self.megatron}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                "OMP_NUM_THREADS": "1",
                **({} if emulated else {"ACCEL_BRIDGE_BACKEND": "cpu"}),
            },
            capture_output=True,
            text=True,
            errors="replace",
            timeout=900,
        )
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        steps = _steps(done.stdout)
        if not steps:
            text = (done.stdout + done.stderr).strip().splitlines()
            said = [line for line in text if "Error" in line or "error:" in line]
            raise RuntimeError(f"{name}: {(said or text or ['no output'])[-1][-300:]}")
        return steps


#: Instruction data of the scripts, with rows that training need not cut.
_TUNED = "--handler-name AlpacaStyleInstructionHandler --prompt-type qwen3 --seq-length 64".split()


def worst(left: list[tuple[float, float]], right: list[tuple[float, float]], part: int) -> float:
    """Largest difference of the steps' losses (0) or norms (1); infinite if steps are missing."""
    if len(left) != len(right):
        return float("inf")
    found = [abs(a[part] - b[part]) for a, b in zip(left, right, strict=True)]
    return max(found) if all(map(math.isfinite, found)) else math.inf


def _steps(text: str) -> list[tuple[float, float]]:
    """Loss and gradient's norm of each step of a log."""
    return [(float(loss), float(norm)) for loss, norm in _STEP.findall(text)]


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stderr}")


def _rows(file: Path | None) -> dict[str, dict[str, object]]:
    """Script and ranks -> its row."""
    known = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else []
    return {f"{row['script']} {row['ranks']}": row for row in known}


def main() -> int:
    """A line for each script; status 1 where one is not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("megatron", type=Path)
    parser.add_argument("--only", nargs="+", default=CHOSEN)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--warm", action="store_true", help="one rank, from a Python that is warm")
    parser.add_argument("--work", type=Path, help="a directory to keep data and checkpoints in")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--resume", action="store_true", help="skip what --json and --logs have already"
    )
    parser.add_argument("--logs", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mindspeed-") as name:
        logs = asked.logs or Path(name) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        directory = (asked.work or Path(name) / "work").resolve()
        directory.mkdir(parents=True, exist_ok=True)
        bench = Bench(
            asked.checkout.resolve(),
            asked.megatron.resolve(),
            directory,
            logs.resolve(),
            asked.ranks,
            asked.warm and asked.ranks == 1,
            asked.resume,
        )
        bench.prepare()
        failed = 0
        for script in asked.only:
            done = _rows(asked.json).get(f"{script} {asked.ranks}", {})
            if asked.resume and done.get("outcome") == "equal":
                continue
            row = bench.run(script)
            failed += row.outcome != "equal"
            print(
                f"{script}: {row.outcome} ({row.seconds} s) losses {row.losses}, "
                f"difference {row.difference}, injected {row.injected}",
                flush=True,
            )
            if asked.json:
                # Read again: another process may have added to it.
                rows = _rows(asked.json) | {f"{row.script} {row.ranks}": asdict(row)}
                text = json.dumps(sorted(rows.values(), key=str), indent=1) + "\n"
                asked.json.write_text(text, encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
