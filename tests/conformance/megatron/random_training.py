"""Random combinations of Megatron's flags, each computed in several ways that must agree.

    python tests/conformance/megatron/random_training.py CHECKOUT [--seeds 1-20] [--variants 3]
        [--limit SECONDS] [--logs DIRECTORY] [--hybrid] [--rehearse]

CHECKOUT is a directory with a Megatron's package and its pretrain_gpt.py. A seed gives a model and
a training; one process trains one iteration and saves. Then one process goes on, as plainly as it
can, and so does every variant: a layout with some flags that must change nothing, perhaps
resumed on the way. Losses and gradient norms must be those of the plain run, and, but in FP8, the
statistics of every parameter, its gradient and every output at the first step. With --rehearse
every variant is rehearsed instead, and must do and say what it does when it is run. Not part of the
test suite: it says what nobody named.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hybrids
import megatron_programs
from cells import error_in
from megatron_programs import Trainer
from mixtures import Mixture, Variant, draw
from recipe_verdicts import Numbers, numbers_in
from rehearsed import Rehearsed

from accel_bridge.apps.comparison import NotComparable, compare
from accel_bridge.bridge.activation import BEFORE
from accel_bridge.recording import PLAN, Plan, read

ALL: Final = 5
SAVED: Final = 1
RESUMED: Final = 3
#: Largest relative difference of a loss and of a gradient norm.
TOLERANCE: Final = {"": (1e-5, 2e-4), "--bf16": (2e-3, 0.1), "--fp16": (1e-3, 0.1)}
TOLERANCE_OF_FP8: Final = (1e-2, 0.3)
#: What Megatron computes or prints for a rank's own tokens, or those of its micro-batches so far.
OF_OWN_TOKENS: Final = ("z_loss", "global_load_balancing_loss")
#: A weight's gradient of at most this share of the whole is zero but for rounding, as that of a
#: key's bias before a softmax.
NOISE: Final = 1e-6
#: What an error holds that Megatron raises on purpose.
REFUSALS: Final = (
    *("Megatron does not accept", "Megatron does not take", "is required"),
    *("are currently supported", "Megatron has no such feature"),
)


def main() -> int:
    """Print a line per variant; status 1 when one is wrong."""
    parser = megatron_programs.options(__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--seeds", default="1-10", help="FIRST-LAST")
    parser.add_argument("--variants", type=int, default=3)
    parser.add_argument("--hybrid", action="store_true", help="models with state-space layers")
    parser.add_argument("--rehearse", action="store_true", help="compare with a rehearsal")
    parser.set_defaults(limit=120, warm=True)
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    scripts = ["pretrain_hybrid.py", "pretrain_mamba.py"] if asked.hybrid else []
    checkout: Path = asked.checkout.resolve()
    script = next(name for name in (*scripts, "pretrain_gpt.py") if (checkout / name).exists())
    python = megatron_programs.python_of(asked)
    trainer = Trainer(checkout, asked.backend, "module", python, asked.limit, script=script)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        logs = megatron_programs.logs_of(asked, Path(name))
        known = known_flags(trainer, logs)
        for seed in range(int(first), int(last or first) + 1):
            mixture = draw(seed, known, asked.variants, asked.hybrid)
            with tempfile.TemporaryDirectory(dir=name) as directory:
                if hybrids.DOCUMENTS in mixture.what:
                    hybrids.write_documents(Path(directory) / "documents")
                judge = Rehearsed if asked.rehearse else Try
                for line in judge(trainer, mixture, Path(directory), logs).lines():
                    counts[line.split()[1]] += 1
                    print(line, flush=True)
    print(dict(counts))
    return int(counts["WRONG"] > 0)


def known_flags(trainer: Trainer, logs: Path) -> dict[str, list[str]]:
    """All flags of this Megatron, and the values of those that take only some."""
    _, output = trainer.train(1, ["--help"], logs, logs / "help.log")
    return flags_in(output)


def flags_in(page: str) -> dict[str, list[str]]:
    """Those of a page of argparse's."""
    some = dict(re.findall(r"(--[a-z][\w-]*) \[?\{([^}]+)\}", page, re.IGNORECASE))
    flags = re.findall(r"--[a-z][\w-]*", page, re.IGNORECASE)
    return {flag: re.split(r",\s*", some[flag]) if flag in some else [] for flag in flags}


@dataclass(frozen=True)
class Try:
    """One mixture's runs."""

    trainer: Trainer
    mixture: Mixture
    directory: Path
    logs: Path

    def lines(self) -> list[str]:
        """A line for the plain run, and one per variant."""
        mixture = self.mixture
        text = " ".join((*mixture.what, mixture.precision))
        start = ["--save", "start", "--save-interval", str(SAVED), "--exit-interval", str(SAVED)]
        error, _ = self._run("start", 1, start, ())
        load = ["--load", "start", "--no-load-rng", "--no-load-optim"]
        reference: Numbers = {}
        if not error:
            error, reference = self._run("plain", 1, load, range(SAVED + 1, ALL + 1))
        if error:
            return [f"{mixture.seed} {verdict(error)} plain: {error}\n    {text}"]
        lines = [f"{mixture.seed} plain: {text}"]
        for index, variant in enumerate(mixture.variants):
            error = self._judge(str(index), variant, load, reference)
            lines.append(f"{mixture.seed} {verdict(error)} {variant}")
            if error:
                lines[-1] += f"\n    {error}"
        return lines

    def _judge(self, name: str, variant: Variant, load: list[str], reference: Numbers) -> str:
        words, processes = variant.words(), variant.layout.processes
        if variant.layout.splits_tokens:
            reference = {
                step: {name: value for name, value in values.items() if name not in OF_OWN_TOKENS}
                for step, values in reference.items()
            }
        steps = range(SAVED + 1, ALL + 1)
        if variant.saving is not None:
            own = ["--save", name, "--save-interval", str(RESUMED), *variant.saving.split()]
            more = [*words, *load, *own, "--exit-interval", str(RESUMED)]
            error, numbers = self._run(
                f"{name}-save", processes, more, range(SAVED + 1, RESUMED + 1)
            )
            error = error or self.difference(numbers, reference)
            if error:
                return error
            load = ["--load", name, *variant.saving.split()]
            steps = range(RESUMED + 1, ALL + 1)
        error, numbers = self._run(name, processes, [*words, *load], steps)
        return error or self.difference(numbers, reference) or self._tensors(name)

    def _tensors(self, name: str) -> str:
        """What departs from the plain run at the first step."""
        plain, path = (self._recording(one) for one in ("plain", name))
        if "--fp8" in self.mixture.precision or not (plain.exists() and path.exists()):
            return ""
        try:
            found = compare(read(plain), read(path))
        except NotComparable as error:
            return f"OFF {error.evidence}"
        # The table is for usual models; in low precision a clamp or a router flips some values.
        low = bool(self.mixture.precision)
        norm = found.rows[0].a.gradient_norm
        sizes = [
            (one.distance.means if low else one.size, one)
            for one in found.departures
            if one.kind != "weight gradient"
            or math.sqrt(max(one.a.moments.squares, one.b.moments.squares)) > NOISE * norm
        ]
        worst = next(((size, one) for size, one in sizes if size > 5 * one.limit), None)
        if worst is None:
            return ""
        return f"OFF {worst[1].where}: {worst[0]:.1e}, limit {worst[1].limit:.1e}"

    def _recording(self, name: str) -> Path:
        return self.directory / f"{name}.rec"

    def difference(self, numbers: Numbers, reference: Numbers) -> str:
        precision = self.mixture.precision
        tolerances = TOLERANCE[" ".join(precision.split()[:1])]
        tolerances = TOLERANCE_OF_FP8 if "--fp8" in precision else tolerances
        worst = ""
        first = min(numbers)
        for step, values in numbers.items():
            for name, value in values.items():
                other = reference.get(step, {}).get(name)
                # The first loss after a load may be a mean over two iterations.
                if other is None or (step == first and "loss" in name and "scale" not in name):
                    continue
                limit = tolerances[name != "lm loss"]
                # Norms are printed with three digits; recordings have all.
                digits = 1e-3 if "norm" in name else 0.0
                apart = max(abs(value - other) - digits, 0.0) / max(abs(other), 1e-3)
                if not apart <= limit:
                    worst = worst or f"step {step}: {name} {value}, plain {other} ({apart:.1e})"
        return f"OFF {worst}" if worst else ""

    def _run(
        self, name: str, processes: int, more: list[str], steps: range | tuple[()]
    ) -> tuple[str, Numbers]:
        words = [*self.mixture.words(), "--train-iters", str(ALL), *more]
        # Megatron asks for it with Transformer Engine's Python.
        environ = {"NVTE_CPU_OFFLOAD_V1": "1"} if "--fine-grained-activation" in str(words) else {}
        if SAVED + 1 in steps and "--exit-interval" not in more:
            plan = Plan(out=str(self._recording(name)))
            environ |= {BEFORE: "accel_bridge.apps.record:attach", PLAN: plan.as_word()}
        log = self.logs / f"{self.trainer.checkout.name}-{self.mixture.seed}-{name}.log"
        status, output = self.trainer.train(processes, words, self.directory, log, environ)
        found = numbers_in(output)
        losses = {step: values.get("lm loss", math.nan) for step, values in found.items()}
        return error_in(status, output, steps, losses), found


def verdict(error: str) -> str:
    """ok, WRONG (other numbers), or how a run ended."""
    if not error:
        return "ok"
    refused = any(text in error for text in REFUSALS)
    return "WRONG" if error.startswith("OFF") else "refused" if refused else "ENDED"


if __name__ == "__main__":
    raise SystemExit(main())
