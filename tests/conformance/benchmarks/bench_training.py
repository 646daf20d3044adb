"""Training speed beside upstream Megatron and Transformer Engine, in one lease of one machine.

    python tests/conformance/benchmarks/bench_training.py [--models A,B] [--ways local,bridge,te]
        [--out DIRECTORY]

Every row is a process of its own (torchrun) that trains on mock data with Megatron's own training
loop. Time is Megatron's "elapsed time per iteration", the median after the warm-up; TFLOP/s are
Megatron's own count; memory is the largest ``torch.cuda.max_memory_allocated`` of any rank.

- ``local``: upstream's local spec. Nothing of accel_bridge but the patch without which a
  pip-installed Megatron does not start (it runs ``make``).
- ``te``: Transformer Engine's spec, likewise, at its best: the weight gradients of Apex's
  extension, which is built from the sources in ``--apex DIRECTORY`` (csrc/megatron/
  fused_weight_gradient_dense* and csrc/type_shim.h of NVIDIA/apex), Megatron's fused loss, fused
  permutation and routing of experts, and ``--attention-backend fused``: cuDNN's fused attention
  or an error, never a silent fallback. ``--te DIRECTORY`` is where it is installed.
- ``bridge``: Megatron's default arguments with accel_bridge, whose extension completes NVIDIA's
  Python layer.
- ``logits``: ``bridge`` with the logits of all tokens, where it leaves them out.
- ``beside``: the same with the real Transformer Engine installed.
- ``hopper``: ``bridge`` with the packages of the extra of that name, in ``--hopper DIRECTORY``.
- ``triton``: ``bridge`` with mamba_ssm that was installed without its compiled part in ``--triton
  DIRECTORY``; ``te`` takes it, too, and beside it causal_conv1d, compiled, and selective_scan_cuda
  (an empty module does: Mamba-2 calls nothing of it) from the directory ``--te``.
- ``before``: ``bridge`` with another accel_bridge, installed in ``--before DIRECTORY``.

A pip-installed Megatron carries the training loop but no scripts: accel_bridge's own call it, which
is all that they do. Hybrid models are trained by Megatron's own pretrain_hybrid.py the ways that
are upstream's, from ``--scripts DIRECTORY``, which also holds hybrid_builders.py and
model_provider.py; ``local`` is none of their ways.

The rows of a model are measured one after the other, so that their ratios are those of one machine
state. With ``--gpus N``, N models of one GPU run side by side, each on a GPU and on processor cores
of its own; then N/2 models of two GPUs, and so on. With ``--together 3`` three trainings load at
the same time, where the memory of the GPUs holds them, and are then measured one by one. With
``--warm`` each process is a fork of one that has imported everything.

With ``--evidence A,B`` two more steps of these models are profiled after the measured ones, with
accel_bridge and with Transformer Engine: what a step is made of (``step_parts.py``).

``--merge rows.json...`` puts measured rows into docs/performance.json, from which ``make docs``
writes the table of docs/results.md; a row replaces an older one of its model and way.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import runpy
import socket
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from step_parts import PROFILED, profile_after
from training_models import (
    COMMON,
    DOCUMENT,
    FUSED_EXPERTS,
    GPUS,
    ITERATIONS,
    MODELS,
    MORE_ITERATIONS,
    ONLY_MAKE,
    WARMUP,
    WAYS,
)
from turns import DIRECTORY, IMPORTING, OWN, Training, run_all, use_cores, wait, wait_before_step
from warm import warm_pythons

#: The data from which docs/results.md is made, and what it keeps of a row.
COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "performance.json"
KEPT = (
    *("model", "way", "gpus", "milliseconds", "spread", "tflops", "gigabytes", "error", "lease"),
    "kernels",
)
#: The ways of which steps are profiled.
EVIDENCE_WAYS = ("bridge", "hopper", "te")
#: The argument that every hybrid model has.
_HYBRID = "--hybrid-layer-pattern"


@dataclass
class Row:
    """One run.

    :param milliseconds: median per iteration; None when the run failed.
    :param spread: the middle half of the iterations, as a share of the median.
    :param gigabytes: peak memory of the fullest rank, 10^9 bytes.
    :param losses: every iteration's loss.
    :param error: the last line of a run that failed.
    :param lease: date, device and versions of the run.
    :param kernels: milliseconds of a step by kind of kernel, where it was profiled.
    """

    model: str
    way: str
    milliseconds: float | None = None
    spread: float = 0.0
    tokens_per_second: float = 0.0
    tflops: float = 0.0
    gigabytes: float = 0.0
    losses: tuple[float, ...] = ()
    error: str = ""
    lease: str = ""
    gpus: int = 1
    kernels: dict[str, float] | None = None


def train() -> None:
    """One process of a run; arguments of Megatron in ``sys.argv``."""
    use_cores(IMPORTING)
    import accel_bridge.auto  # noqa: F401 - before Megatron

    if document := int(os.environ.get("BENCH_DOCUMENT", "0")):
        _set_document_length(document)
    import torch
    from megatron.training import training

    script = _script()
    wait("load")
    use_cores(OWN)
    if after := int(os.environ.get("BENCH_EVIDENCE", "0")):
        profile_after(training, after)
    wait_before_step(training, torch.cuda.synchronize)
    try:
        script()
    finally:
        print(f"bench-peak {torch.cuda.max_memory_allocated()}", flush=True)
        (Path(os.environ[DIRECTORY]) / f"done.{os.environ['RANK']}").touch()
    sys.stdout.flush()
    os._exit(0)  # taking down process groups takes longer than the measured steps


def _script() -> Callable[[], object]:
    """What this process trains with: Megatron's own script if it is named, else ours."""
    if script := os.environ.get("BENCH_SCRIPT"):
        sys.path.append(str(Path(script).parent))
        return partial(runpy.run_path, script, run_name="__main__")
    from accel_bridge.pretrain import pretrain_gpt, pretrain_hybrid

    return pretrain_hybrid.main if _HYBRID in sys.argv else pretrain_gpt.main


def _set_document_length(document: int) -> None:
    """Mock data of documents of this many tokens."""
    import numpy
    from megatron.core.datasets import gpt_dataset

    made = gpt_dataset.MockGPTLowLevelDataset.__init__

    def initialise(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        made(self, *args, **kwargs)
        self.sequence_lengths = numpy.full_like(self.sequence_lengths, document)

    gpt_dataset.MockGPTLowLevelDataset.__init__ = initialise


def training_of(model: str, way: str, options: argparse.Namespace) -> Training:
    """The training of one model one way, which is not started yet."""
    ranks = GPUS.get(model, 1)
    python, environment = options.pythons.get(way) or (sys.executable, environment_of(way, options))
    environment = dict(environment, BENCH_DOCUMENT=str(DOCUMENT.get(model, 0)))
    command = [python, __file__, "--train", *arguments_of(model, way, options).split()]
    if ranks == 1:
        environment |= dict.fromkeys(("RANK", "LOCAL_RANK"), "0")
        environment |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    else:
        launch = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}"
        command[1:1] = launch.split()
    if _is_upstreams(model, way):
        environment["BENCH_SCRIPT"] = str(Path(options.scripts).resolve() / "pretrain_hybrid.py")
    if _profiled(model, way, options):
        environment["BENCH_EVIDENCE"] = str(_iterations(model, options))
    log = Path(options.out).resolve() / f"{model}-{way}.log"
    return Training(command, environment, ranks, log, options.limit, _gigabytes(model, way))


def _iterations(model: str, options: argparse.Namespace) -> int:
    """Iterations that are measured or warm up: more where the host's noise is the limit."""
    return int(options.iterations * MORE_ITERATIONS.get(model, 1))


def _profiled(model: str, way: str, options: argparse.Namespace) -> bool:
    return way in EVIDENCE_WAYS and model in options.evidence.split(",")


def _is_upstreams(model: str, way: str) -> bool:
    """Whether Megatron's own script trains it."""
    return way in ("local", "te") and _HYBRID in MODELS[model]


def _gigabytes(model: str, way: str) -> float:
    """What a training took of each GPU when it was measured last, and a little more."""
    known = json.loads(COMMITTED.read_text()) if COMMITTED.is_file() else []
    sizes = {(row["model"], row["way"]): row["gigabytes"] for row in known if row["gigabytes"]}
    found = sizes.get((model, way)) or sizes.get((model, "bridge"), 30.0)
    return 1.1 * float(found) + 3.0


#: Below those that systems give to whoever asks for any port, as other trainings do.
_PORTS = itertools.count(20000)


def _free_port() -> int:
    """A port that nobody listens at, another one in each call."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there are ports for ever")


def environment_of(way: str, options: argparse.Namespace) -> dict[str, str]:
    """The variables of one way."""
    environment = dict(os.environ, PYTHONWARNINGS="ignore", CUDA_DEVICE_MAX_CONNECTIONS="1")
    if way in ("local", "te"):
        environment["ACCEL_BRIDGE_PATCHES"] = ONLY_MAKE
        environment["ACCEL_BRIDGE_LIBRARIES"] = "none"
    if way == "logits":
        environment["ACCEL_BRIDGE_LINEAR_CROSS_ENTROPY"] = "off"
    # What the packages' .pth file adds where they are installed.
    hopper = [options.hopper, f"{options.hopper}/nvidia_cutlass_dsl/dsl_packages"]
    paths = {
        "te": [options.triton, options.apex, options.te],
        "beside": [options.te],
        "hopper": hopper,
        "triton": [options.triton],
        "before": [options.before],
    }.get(way, [])
    if way in ("te", "beside") and options.te:
        environment |= _transformer_engine()
    paths = [*filter(None, paths), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = ":".join(map(str, paths))
    return environment


def arguments_of(model: str, way: str, options: argparse.Namespace) -> str:
    """Megatron's arguments."""
    arguments = f"{COMMON} {MODELS[model]} {WAYS[way]}"
    if "--num-experts" in arguments:
        # Upstream's local spec has no grouped experts.
        arguments = arguments.replace("--moe-grouped-gemm", "") if way == "local" else arguments
        arguments += f" {FUSED_EXPERTS}" if way == "te" else ""
    iterations = _iterations(model, options)
    last = iterations + (PROFILED if _profiled(model, way, options) else 0)
    return f"{arguments} --train-iters {last} --lr-decay-iters {iterations} {options.extra}"


def build_apex(sources: Path, directory: Path) -> Path:
    """``fused_weight_gradient_mlp_cuda``, built as Apex's setup.py does; its directory."""
    from torch.utils.cpp_extension import load

    directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    flags = "-O3 -U__CUDA_NO_HALF_OPERATORS__ -U__CUDA_NO_HALF_CONVERSIONS__ "
    flags += "--expt-relaxed-constexpr --expt-extended-lambda --use_fast_math"
    load(
        "fused_weight_gradient_mlp_cuda",
        [str(path) for path in sorted(sources.glob("fused_weight_gradient_dense*"))],
        extra_include_paths=[str(sources)],
        extra_cflags=["-O3"],
        extra_cuda_cflags=flags.split(),
        extra_ldflags=["-lcublas"],
        build_directory=str(directory),
        is_python_module=False,
    )
    return directory


def _transformer_engine() -> dict[str, str]:
    """Variables under which Transformer Engine finds its libraries.

    Without the preloaded cuDNN sub-libraries it falls back to unfused attention.
    """
    import nvidia

    root = Path(next(iter(nvidia.__path__)))
    libraries = [root / part / "lib" for part in ("nccl", "cudnn", "cu13")]
    names = ("graph", "engines_precompiled", "engines_runtime_compiled", "heuristic", "ops")
    preload = [root / "cudnn/lib" / f"libcudnn_{name}.so.9" for name in names]
    preload.append(root / "cudnn/lib/libcudnn.so.9")
    paths = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        "LD_LIBRARY_PATH": ":".join([*map(str, libraries), paths]),
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
    }


def read(log: str, model: str, way: str, options: argparse.Namespace) -> Row:
    """The row that a log tells."""
    arguments = arguments_of(model, way, options)
    times = [float(t) for t in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", log)]
    speeds = [float(t) for t in re.findall(r"throughput per GPU \(TFLOP/s/GPU\): ([\d.]+)", log)]
    losses = tuple(float(t) for t in re.findall(r"lm loss: ([\d.E+-]+)", log))
    peaks = [int(peak) for peak in re.findall(r"bench-peak (\d+)", log)]
    wanted = _iterations(model, options)
    if len(times) < wanted:
        return Row(model, way, error=_told(log)[:200], losses=losses)
    times, speeds = times[options.warmup : wanted], speeds[options.warmup : wanted]
    kernels = re.findall(r"bench-kernels (\{.*?\})", log)
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4)
    value = dict(re.findall(r"--(seq-length|global-batch-size) (\d+)", arguments))
    tokens = int(value["seq-length"]) * int(value["global-batch-size"])
    return Row(
        model,
        way,
        median,
        (high - low) / median,
        tokens / median * 1e3,
        statistics.median(speeds) if speeds else 0.0,
        max(peaks, default=0) / 1e9,
        losses[:wanted],
        kernels=json.loads(kernels[0]) if kernels else None,
    )


def _told(log: str) -> str:
    """The line of a failed run that says most."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"Error: |accel-bridge: error: ", line)]
    own = [line for line in errors if "ChildFailedError" not in line]
    return next(reversed(own or errors or lines), "no output")


def print_table(rows: list[Row]) -> None:
    """The rows as Markdown, with each bridge row's ratios to the others of its model."""
    print("| model | way | ms | spread | tokens/s | TFLOP/s per GPU | GB | bridge is faster by |")
    print("|---|---|---|---|---|---|---|---|")
    ours = {row.model: row for row in rows if row.way == "bridge" and row.milliseconds}
    for row in rows:
        if row.milliseconds is None:
            print(f"| {row.model} | {row.way} | - | | | | | {row.error} |")
            continue
        ratio = ""
        if (bridge := ours.get(row.model)) is not None and bridge is not row:
            assert bridge.milliseconds is not None
            ratio = f"{row.milliseconds / bridge.milliseconds:.2f}x"
            if row.gigabytes:
                ratio += f", memory {bridge.gigabytes / row.gigabytes:.2f}x"
        print(
            f"| {row.model} | {row.way} | {row.milliseconds:.1f} | {row.spread:.1%} | "
            f"{row.tokens_per_second:,.0f} | {row.tflops:.0f} | {row.gigabytes:.1f} | {ratio} |"
        )


def main() -> None:
    """Measure the models and ways that were asked for, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--models",
        default=",".join(m for m in MODELS if m not in GPUS),
        help="A,B:bridge+te: A in all ways, B in these two",
    )
    parser.add_argument("--ways", default="local,bridge,te")
    parser.add_argument("--before", help="directory in which another accel_bridge is installed")
    parser.add_argument(
        "--hopper", help="directory in which the packages of [hopper] are installed"
    )
    parser.add_argument("--triton", help="directory in which mamba_ssm is installed")
    parser.add_argument("--te", help="directory in which Transformer Engine is installed")
    parser.add_argument("--scripts", help="directory of Megatron's own scripts, for hybrid models")
    parser.add_argument("--apex", type=Path, help="directory of Apex's sources, which te needs")
    parser.add_argument("--out", default=".", help="directory for logs and rows.json")
    parser.add_argument(
        "--limit", type=int, default=150, help="seconds to load, and to be measured"
    )
    parser.add_argument("--within", type=float, default=1e9, help="seconds to start trainings in")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--warmup", type=int, default=WARMUP, help="iterations that do not count")
    parser.add_argument("--evidence", default="", help="models of which steps are profiled")
    parser.add_argument("--extra", default="", help="more arguments for Megatron")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs that models spread over")
    parser.add_argument(
        "--together",
        type=_together,
        default={},
        metavar="N[,N2[,N4]]",
        help="trainings of one, two and four GPUs that load at the same time on the same GPUs",
    )
    parser.add_argument("--memory", type=float, default=130.0, help="gigabytes of each GPU")
    parser.add_argument("--warm", action="store_true", help="trainings are forks of warm Pythons")
    parser.add_argument("--merge", nargs="+", type=Path, help="rows to put into the committed data")
    options = parser.parse_args()
    if options.merge:
        merge(options.merge)
        return
    Path(options.out).mkdir(parents=True, exist_ok=True)
    measured_now = lease(options.te)
    wanted = [pair for word in options.models.split(",") for pair in _pairs(word, options.ways)]
    if any(way == "te" for _, way in wanted):
        if options.apex is None:
            parser.error(
                "way te: --apex DIRECTORY must name Apex's sources: without its fused weight "
                "gradients Transformer Engine is slower than its users see it"
            )
        options.apex = build_apex(options.apex, Path(options.out).resolve() / "apex")
    if options.scripts is None and any(_is_upstreams(*pair) for pair in wanted):
        parser.error("hybrid models: --scripts DIRECTORY must hold Megatron's pretrain_hybrid.py")
    options.pythons = {}
    if options.warm:
        ways = dict.fromkeys(way for _, way in wanted)
        options.pythons = warm_pythons({way: environment_of(way, options) for way in ways})
    rows: list[Row] = []
    names = {
        id(training): (model, way, training)
        for model, way in wanted
        for training in [training_of(model, way, options)]
    }
    lock = threading.Lock()

    def ended(training: Training) -> None:
        model, way, _ = names[id(training)]
        row = read(training.log.read_text(errors="replace"), model, way, options)
        row.lease, row.gpus = measured_now, training.processes
        with lock:
            print(
                f"{model} {way}: {row.milliseconds or row.error} ms, {row.gigabytes:.1f} GB, "
                f"loss {row.losses[-1] if row.losses else None}",
                file=sys.stderr,
                flush=True,
            )
            rows.append(row)
            Path(options.out, "rows.json").write_text(json.dumps([asdict(row) for row in rows]))

    groups: dict[str, list[Training]] = {}
    for model, _, training in names.values():
        groups.setdefault(model, []).append(training)
    limits = (options.within, options.memory, not options.pythons)
    run_all(list(groups.values()), options.gpus, options.together, ended, *limits)
    order = list(groups)
    print_table(sorted(rows, key=lambda row: order.index(row.model)))


def _pairs(word: str, ways: str) -> list[tuple[str, str]]:
    """``A`` -> A in each of ``ways``; ``A:bridge+te`` -> A in these two."""
    model, _, own = word.partition(":")
    return [(model, way) for way in (own.split("+") if own else ways.split(","))]


def _together(word: str) -> dict[int, int]:
    """GPUs of a training -> how many load together: ``3,2,2`` for those of one, two and four."""
    return {2**place: int(number) for place, number in enumerate(word.split(","))}


def lease(te: str | None) -> str:
    """Date, device and versions, for the rows that are measured now."""
    from importlib.metadata import distributions, version

    import torch

    here = torch.cuda.is_available()
    parts = [f"{datetime.now(UTC):%Y-%m-%d %H:%M}", torch.cuda.get_device_name() if here else "CPU"]
    if torch.cuda.device_count() > 1:
        parts[-1] += f" x {torch.cuda.device_count()}"
    parts += [f"torch {torch.__version__}", f"cuDNN {torch.backends.cudnn.version()}"]
    parts += [f"megatron-core {version('megatron-core')}"]
    for found in distributions(path=[te]) if te else ():
        if found.name in ("transformer_engine", "transformer-engine"):
            parts.append(f"Transformer Engine {found.version}")
    return ", ".join(parts)


def merge(files: list[Path]) -> None:
    """Measured rows into the committed data; of the losses only the last stays."""
    known = json.loads(COMMITTED.read_text()) if COMMITTED.is_file() else []
    rows = {(row["model"], row["way"]): row for row in known}
    for file in files:
        for row in json.loads(file.read_text()):
            kept = {name: row[name] for name in KEPT if row.get(name) is not None}
            kept.setdefault("milliseconds", None)
            kept["loss"] = row["losses"][-1] if row["losses"] else None
            rows[row["model"], row["way"]] = kept
    places = {model: place for place, model in enumerate(MODELS)}
    ways = [*WAYS, "gemms"]
    ordered = sorted(
        rows.values(), key=lambda row: (places.get(row["model"], 999), ways.index(row["way"]))
    )
    COMMITTED.write_text(
        "[\n" + ",\n".join(json.dumps(row, sort_keys=True) for row in ordered) + "\n]\n"
    )


if __name__ == "__main__":
    if "--train" in sys.argv:
        sys.argv.remove("--train")
        train()
    else:
        main()
