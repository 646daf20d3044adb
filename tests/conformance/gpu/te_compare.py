"""Transformer Engine, compiled and over accel_bridge's extension, module by module, on one GPU.

Two processes record, one with the compiled library on its path and one with ours; a third call
compares their files:

    python tests/conformance/gpu/te_compare.py record real.json
    python tests/conformance/gpu/te_compare.py record ours.json --shim
    python tests/conformance/gpu/te_compare.py compare real.json ours.json

Each case (te_cases.py) is computed from the same seeds, and measured against float64 in the process
that computed it. The rule is the tolerance policy's: the shim's error is at most 2 times the real
library's (gradients: 3 times), besides half a unit in the last place; and where the real one's host
never waits for the device in a pass, ours must not either.
``--sizes small --time-sizes small`` runs on a CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import statistics
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

Entry = dict[str, Any]


def choose_library(shim: bool) -> None:
    """Put accel_bridge's Transformer Engine before the real one, if it is asked for."""
    if shim:
        os.environ["ACCEL_BRIDGE_LIBRARIES"] = "all"
        importlib.import_module("accel_bridge.auto")


def load_cases(shim: bool) -> Any:
    """The cases, with the library that was asked for behind them."""
    choose_library(shim)
    sys.path.insert(0, str(Path(__file__).parent))
    import te_cases
    import te_more_cases  # noqa: F401

    return te_cases


def recipe(name: str, history: int = 4) -> Any:
    """An FP8 recipe by its short name."""
    from transformer_engine.common import recipe as recipes

    kinds = {
        "tensorwise": recipes.Float8CurrentScaling,
        "delayed": lambda: recipes.DelayedScaling(amax_history_len=history),
        "blockwise": recipes.Float8BlockScaling,
    }
    return kinds[name]()


def precision(name: str) -> Any:
    """A context that computes in bfloat16 or float32 (no name), or in FP8."""
    if not name:
        return nullcontext()
    from transformer_engine.pytorch import autocast

    return autocast(enabled=True, recipe=recipe(name))


def fill(module: Any) -> None:
    """Parameters that depend on their shape and place only."""
    with torch.no_grad():
        for index, (name, parameter) in enumerate(module.named_parameters()):
            seed = zlib.crc32(f"{index} {list(parameter.shape)}".encode())
            generator = torch.Generator().manual_seed(seed)
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                values /= parameter.shape[1] ** 0.5
            else:
                values = 0.1 * values + (1 if re.search(r"norm_weight|^(0\.)?weight$", name) else 0)
            parameter.copy_(values)


def weights_for(output: torch.Tensor) -> torch.Tensor:
    """What the output's sum is weighted with."""
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(output.shape, generator=generator).to(output.dtype)
    return values.to(output.device)


def gradients(output: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of the weighted sum, by name; from main_grad where that is collected."""
    (output * weights_for(output)).sum().backward()
    found = {}
    for name, tensor in tensors.items():
        gradient = getattr(tensor, "main_grad", tensor.grad)
        if gradient is not None:
            found[f"grad {name}"] = gradient
    return found


def leaves(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies to differentiate with respect to."""
    return {
        name: one.detach().clone().requires_grad_(one.is_floating_point())
        for name, one in inputs.items()
    }


def measure(problem: Any, name: str) -> dict[str, list[float]]:
    """Largest error, root mean square error and largest value of each result."""
    module = problem.module
    parameters = {} if module is None else dict(module.named_parameters())
    for _ in range(3 if name == "delayed" else 1):
        # Delayed scaling learns its scales in the first passes.
        inputs = leaves(problem.inputs)
        for parameter in parameters.values():
            parameter.grad = None
            if hasattr(parameter, "main_grad"):
                parameter.main_grad.zero_()
        with precision(name):
            output = problem.call(module, inputs)
        found = {"output": output.detach(), **gradients(output, {**inputs, **parameters})}
    wide = {
        key: {n: one.detach().double().requires_grad_() for n, one in group.items()}
        for key, group in (("inputs", problem.inputs), ("parameters", parameters))
    }
    exact_output = problem.exact(wide["parameters"], wide["inputs"])
    weighted = exact_output * weights_for(output).double()
    weighted.sum().backward()
    exact = {"output": exact_output.detach()}
    for group in wide.values():
        exact.update({f"grad {n}": one.grad for n, one in group.items() if one.grad is not None})
    errors = {}
    for part, value in exact.items():
        if part not in found:
            raise AssertionError(f"no {part}")
        if found[part].shape != value.shape:
            raise AssertionError(f"{part} is {list(found[part].shape)}, not {list(value.shape)}")
        difference = (found[part].double() - value).abs()
        if not bool(difference.isfinite().all()):
            raise AssertionError(f"{part} is not finite")
        largest, square = float(difference.max()), float(difference.square().mean())
        errors[part] = [largest, square**0.5, float(value.abs().max())]
    return errors


def waits(step: Callable[[], object]) -> int:
    """How often the host waits for the device in a step."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in caught)


def speed(problem: Any, name: str, repeat: int) -> tuple[float, int]:
    """Median time of a forward and a backward pass, and how often the host waits in one."""
    inputs = leaves(problem.inputs)
    with precision(name):
        output = problem.call(problem.module, inputs)
    gradient = torch.ones_like(output)

    def step() -> None:
        with precision(name):
            output = problem.call(problem.module, inputs)
        output.backward(gradient)

    times = []
    for index in range(repeat + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if index >= 3:
            times.append(time.perf_counter() - start)
    return statistics.median(times), waits(step)


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def run(cases: Any, one: Any, dtype: torch.dtype, name: str, options: Any) -> Entry:
    """Errors and time of one case in one precision, or why there are none."""
    entry: Entry = {"dtype": str(dtype).removeprefix("torch."), "recipe": name}
    try:
        problem = one.make(cases.SIZES[options.sizes], dtype)
        if problem.module is not None:
            fill(problem.module)
        entry["errors"] = measure(problem, name)
        if options.repeat:
            del problem
            problem = one.make(cases.SIZES[options.time_sizes], dtype)
            entry["seconds"], entry["waits"] = speed(problem, name, options.repeat)
    except Exception as error:
        if options.raise_:
            raise
        entry["refused"] = one_line(error)
    torch.cuda.empty_cache()
    return entry


def record(options: Any) -> int:
    """Run every case, and write the file."""
    cases = load_cases(options.shim)
    import transformer_engine

    entries: dict[str, Entry] = {}
    for one in cases.CASES:
        runs = [(dtype, "") for dtype in one.dtypes]
        runs += [(torch.bfloat16, name) for name in one.recipes]
        for dtype, name in runs:
            key = " ".join([one.name, name or str(dtype).removeprefix("torch.")])
            if not re.search(options.only, key):
                continue
            entries[key] = entry = run(cases, one, dtype, name, options)
            worst = max((e[0] for e in entry.get("errors", {}).values()), default=float("nan"))
            took = f"{1e3 * entry.get('seconds', float('nan')):9.3f} ms"
            print(f"{key:60} {worst:9.2e} {took} {entry.get('refused', '')}", flush=True)
    content = {
        "version": transformer_engine.__version__,
        "file": str(transformer_engine.__file__),
        "torch": torch.__version__,
        "sizes": [options.sizes, options.time_sizes],
        "entries": entries,
    }
    Path(options.file).write_text(json.dumps(content, indent=1))
    return 0


def judge(key: str, real: Entry, ours: Entry) -> tuple[float, str]:
    """The worst share of what is allowed, and whose it is; above 1 fails."""
    from accel_bridge.apps.parity._case import BACKWARD_LIMIT, FLOOR, FORWARD_LIMIT

    eps = torch.finfo(getattr(torch, real["dtype"])).eps
    # Where a slope jumps, the largest error is that of one rounding: the mean square says more.
    kind = 1 if re.search("relu|reglu", key) else 0
    worst = (0.0, "")
    for part, measured in real["errors"].items():
        output = part == "output"
        limit = FORWARD_LIMIT if output else BACKWARD_LIMIT
        same = [e[2] for n, e in real["errors"].items() if (n == "output") == output]
        allowed = limit * measured[kind] + eps / 2 * measured[2] + FLOOR * max(same)
        error = ours["errors"][part][kind] if part in ours["errors"] else float("inf")
        worst = max(worst, (error / allowed if allowed else float(error > 0), part))
    return worst


def verdict(key: str, real: Entry | None, ours: Entry | None) -> tuple[str, str]:
    """PASS, FAIL or skipped, and why."""
    if real is None or ours is None:
        return "skipped", "only one file has it"
    if "errors" not in real:
        return "skipped", f"the real one: {real['refused']}"
    if "errors" not in ours:
        return "FAIL", f"ours: {ours['refused']}"
    if ours.get("waits") and not real.get("waits"):
        return "FAIL", f"the host waits for the device {ours['waits']} times in a pass"
    share, part = judge(key, real, ours)
    why = f"{share:5.2f} of what is allowed ({part})"
    return ("PASS" if share <= 1.0 else "FAIL"), why


def compare(options: Any) -> int:
    """Print the table; 1 if a case fails."""
    real, ours = (json.loads(Path(name).read_text()) for name in (options.real, options.ours))
    for title, content in (("real", real), ("ours", ours)):
        print(f"{title}: {content['version']}, torch {content['torch']}, {content['file']}")
    failed, times = 0, []
    for key in [*real["entries"], *(k for k in ours["entries"] if k not in real["entries"])]:
        a, b = real["entries"].get(key), ours["entries"].get(key)
        result, why = verdict(key, a, b)
        failed += result == "FAIL"
        both = [one.get("seconds") for one in (a, b) if one]
        took = ""
        if len(both) == 2 and all(both):
            times.append(both[1] / both[0])
            took = f"{1e3 * both[0]:9.3f} {1e3 * both[1]:9.3f} ms {both[0] / both[1]:5.2f}x"
        print(f"{result:8}{key:60} {took:32} {why}")
    if times:
        print(f"ours over real, median time: {statistics.median(times):.2f}")
    print(f"{'FAIL' if failed else 'PASS'}: {failed} failed")
    return int(bool(failed))


def parse(description: str | None, verb: str, add: Callable[[Any], None]) -> Any:
    """The options of a tool that writes one file for each library and compares the two."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(verb)
    one.add_argument("file")
    one.add_argument("--shim", action="store_true", help="accel_bridge's, not the real one")
    one.add_argument("--raise", dest="raise_", action="store_true", help="stop at an error")
    add(one)
    two = commands.add_parser("compare")
    two.add_argument("real")
    two.add_argument("ours")
    return parser.parse_args()


def add_options(parser: Any) -> None:
    """Those of ``record`` alone."""
    parser.add_argument("--only", default="", help="cases whose name this expression finds")
    parser.add_argument("--sizes", default="medium", choices=["small", "medium", "large"])
    parser.add_argument("--time-sizes", default="large", choices=["small", "medium", "large"])
    parser.add_argument("--repeat", type=int, default=10, help="timed passes; 0: none")


def main() -> int:
    """The exit status."""
    options = parse(__doc__, "record", add_options)
    return compare(options) if options.command == "compare" else record(options)


if __name__ == "__main__":
    raise SystemExit(main())
