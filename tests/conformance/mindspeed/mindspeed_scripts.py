"""Runs training scripts of MindSpeed-LLM as they stand, made small, on the CPU and emulated NPUs.

    python tests/conformance/mindspeed/mindspeed_scripts.py CHECKOUT MEGATRON [--only SCRIPT...]
        [--ranks 1] [--warm] [--json FILE] [--logs DIRECTORY]

CHECKOUT is a MindSpeed-LLM, MEGATRON a Megatron-LM with its pretrain_gpt.py. Each script of
`examples/mcore` that is named runs unedited, as `accel-bridge run -- bash SCRIPT`, in a directory
with Megatron's pretrain_gpt.py (which is posttrain_gpt.py too). mindspeed_rules.py makes it small.
From one checkpoint it trains on the CPU, on an emulated NPU, and there again with another norm's
epsilon, which must be seen. Rows of other scripts stay in FILE.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT), str(ROOT / "tests/conformance/megatron")]

import megatron_programs  # noqa: E402
import mindspeed_rules  # noqa: E402
from recipe_verdicts import Numbers, errors, numbers_in  # noqa: E402

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
python, small = asked.pop("python"), rules.small(words[at + 1 :], **asked)
start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(asked["ranks"])]
os.execv(python, [python, *start, words[at], *small])
"""
#: Instruction data of the scripts, with rows that training need not cut.
_TUNED = "--handler-name AlpacaStyleInstructionHandler --prompt-type qwen3 --seq-length 64".split()


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
    limit: float
    #: Of the trainings on the CPU and on emulated NPUs.
    pythons: tuple[str, str]

    def prepare(self) -> None:
        """Make data, tokenizer, and what a user's directory has."""
        for name in ("pretrain_gpt.py", "posttrain_gpt.py"):
            (self.directory / name).symlink_to(self.megatron / "pretrain_gpt.py")
        launcher = _LAUNCHER.format(python=sys.executable, here=str(Path(__file__).parent))
        for name in ("logs", "bin"):
            (self.directory / name).mkdir()
        for name in ("torchrun", "python", "python3"):
            (self.directory / "bin" / name).write_text(launcher, encoding="utf-8")
            (self.directory / "bin" / name).chmod(0o755)
        tokenizer = samples.write_tokenizer(self.directory / "tokenizer")
        for data, words in (
            ("plain", ["--handler-name", "GeneralPretrainHandler", "--append-eod"]),
            ("tuned", _TUNED),
            ("packed", [*_TUNED, "--pack", "--neat-pack"]),
        ):
            kind = "plain" if data == "plain" else "alpaca"
            command = [
                *(sys.executable, "-m", "accel_bridge", "preprocess", "--workers", "1"),
                *("--input", str(samples.write(kind, 200, self.directory))),
                *("--output-prefix", str(self.directory / data)),
                *("--tokenizer-type", "PretrainedFromHF"),
                *("--tokenizer-name-or-path", str(tokenizer), *words),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def run(self, script: str) -> Row:
        """Train it three times."""
        began = time.monotonic()
        error = " ".join(mindspeed_rules.INJECTED)
        today = date.today().isoformat()
        row = Row(script, "", [], None, None, error, 0.0, today, self.ranks)
        start = str(self.directory / "start" / script)
        try:
            self._train(script, "start", start=start)
            cpu = self._train(script, "cpu", load=start)
            npu = self._train(script, "npu", load=start, emulated=True)
            wrong = self._train(script, "injected", load=start, emulated=True, wrong=True)
            row.losses = [values["lm loss"] for values in cpu.values()]
            row.difference = apart(cpu, npu)
            row.injected = apart(cpu, wrong)
            norms = apart(cpu, npu, "grad norm") / max(one["grad norm"] for one in cpu.values())
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
        wrong: bool = False,
    ) -> Numbers:
        """Loss and norm of each step.

        :raises RuntimeError: it did not end well.
        """
        path = self.checkout / "examples/mcore" / script
        source = path.read_text(encoding="utf-8")
        packs = "--neat-pack" in source or "--reset-attention-mask" in source
        data = ("packed" if packs else "tuned") if "--is-instruction" in source else "plain"
        prefix = str(self.directory / data) + ("_text_document" if data == "plain" else "")
        paths = {
            "--data-path": prefix,
            "--load": load,
            "--save": str(self.directory / "saved" / name / script),
            "--tokenizer-name-or-path": str(self.directory / "tokenizer"),
        }
        asked = {"paths": paths, "ranks": self.ranks, "start": start, "wrong": wrong}
        own = {
            "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "MINDSPEED_SMALL": json.dumps(asked | {"python": self.pythons[emulated]}),
        }
        bridge = [sys.executable, "-m", "accel_bridge"]
        before = [*bridge, "emulate-ascend", "--devices", str(self.ranks), "--"] if emulated else []
        status, output = megatron_programs.run(
            [*before, *bridge, "run", "--", "bash", str(path)],
            megatron_programs.environment(self.megatron, "ascend" if emulated else "cpu") | own,
            self.directory,
            self.logs / f"{script.replace('/', '-')}-{name}.log",
            self.limit,
        )
        steps = numbers_in(output)
        if not steps:
            told, raised = errors(output)
            said = [*told, *raised] or output.strip().splitlines()
            raise RuntimeError(f"{name}: status {status}: {said[-1][-300:]}")
        return steps


def apart(left: Numbers, right: Numbers, name: str = "lm loss") -> float:
    """Largest difference of the steps' losses or norms; infinite if steps are missing."""
    if left.keys() != right.keys():
        return math.inf
    found = [abs(left[step][name] - right[step][name]) for step in left]
    return max(found) if all(map(math.isfinite, found)) else math.inf


def main() -> int:
    """A line for each script; status 1 where one is not equal."""
    parser = megatron_programs.options(__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("megatron", type=Path)
    parser.add_argument("--only", nargs="+", default=CHOSEN)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.set_defaults(limit=900)
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mindspeed-") as name:
        directory = Path(name, "work")
        directory.mkdir()
        bench = Bench(
            asked.checkout.resolve(),
            asked.megatron.resolve(),
            directory,
            megatron_programs.logs_of(asked, Path(name)),
            asked.ranks,
            asked.limit,
            (
                megatron_programs.python_of(asked),
                megatron_programs.python_of(asked, emulated=True),
            ),
        )
        bench.prepare()
        for script in asked.only:
            row = bench.run(script)
            failed += row.outcome != "equal"
            print(row, flush=True)
            if asked.json:
                kept = json.loads(asked.json.read_text("utf-8")) if asked.json.exists() else []
                kept = [o for o in kept if (o["script"], o["ranks"]) != (script, asked.ranks)]
                text = json.dumps(sorted([*kept, asdict(row)], key=str), indent=1)
                asked.json.write_text(f"{text}\n", encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
