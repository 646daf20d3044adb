"""``accel-bridge parity compare``, ``replay`` and ``logprobs``: two recordings side by side, a
capsule's operators again, and the same tokens' log-probabilities by two programs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from accel_bridge import recording
from accel_bridge.apps import comparison, logprobs
from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_heading,
    print_json,
    print_table,
)
from accel_bridge.apps.comparison import report
from accel_bridge.apps.logprobs import LogprobsError, Prompt
from accel_bridge.bridge.selection import select_here
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.extras import import_torch
from accel_bridge.process.outputs import check_output, holds, write_output
from accel_bridge.process.parser import Parser, amount
from accel_bridge.recording import Capsule, read_capsule

#: Stands in the head of every picture and page.
_REPORT_MARK: Final = report.MADE_BY.encode()


def add_compare(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="two recordings side by side, with a verdict",
        description="Compares two files of `accel-bridge parity record`. Needs neither torch nor "
        "Megatron. Ends with status 1 when the runs disagree, 2 when they cannot be compared.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="the recording to trust")
    parser.add_argument("b", metavar="B", type=Path, help="the recording to judge")
    parser.add_argument(
        "--third",
        metavar="FILE",
        type=Path,
        help="the same run in float32: tells rounding from defects, and which run is off",
    )
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw both curves")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with everything")
    add_json_flag(parser)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare and print; 0 when the runs agree."""
    inputs = [one for one in (arguments.a, arguments.b, arguments.third) if one is not None]
    outputs = {"--png": arguments.png, "--html": arguments.html}
    _check_outputs(outputs, inputs)
    third = None if arguments.third is None else recording.read(arguments.third)
    found = comparison.compare(
        recording.read(arguments.a),
        recording.read(arguments.b),
        third,
        (str(arguments.a), str(arguments.b), str(arguments.third)),
    )
    picture = report.draw(found) if any(outputs.values()) else None
    if arguments.png is not None:
        assert picture is not None
        write_output(arguments.png, picture, option="--png")
    if arguments.html is not None:
        page = report.as_html(found, picture).encode(errors="backslashreplace")
        write_output(arguments.html, page, option="--html")
    if arguments.json:
        print_json(lambda: report.as_json(found))
    else:
        _print_comparison(found)
    return 0 if found.passed else 1


def _print_comparison(found: comparison.Comparison) -> None:
    print_table(("", ""), [list(line) for line in report.facts(found)])
    print_heading("Steps")
    print_table(report.STEP_COLUMNS, report.step_cells(found))
    if found.departures:
        print_heading("First tensors beyond the rule")
        print_table(report.DEPARTURE_COLUMNS, report.departure_cells(found))
    print()
    for line in report.verdict(found):
        print(printable(line))


def _check_outputs(outputs: dict[str, Path | None], inputs: list[Path]) -> None:
    taken = list(inputs)
    for option, path in outputs.items():
        if path is not None:
            check_output(path, option=option, inputs=taken, made=holds(_REPORT_MARK))
            taken.append(path)


def add_replay(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "replay",
        help="the first operator of a capsule that departs from float64, or from another capsule",
        description="Runs every operator of a capsule again in float64 on the inputs that it had, "
        "and names the first whose recorded result is further off than its precision explains. "
        "With two capsules it also names the first operator that only one of them ran, or with "
        "other arguments. Needs no Megatron and no accelerator. Ends with status 1 when it names "
        "one.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="a capsule; with B, the one to trust")
    parser.add_argument("b", metavar="B", type=Path, nargs="?", help="the capsule to judge")
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="judge this backend's kernels on the recorded inputs, instead of what was recorded",
    )
    add_json_flag(parser)


def run_replay(arguments: argparse.Namespace) -> int:
    """Replay and print; 0 when no operator departs."""
    a = read_capsule(arguments.a)
    b = None if arguments.b is None else read_capsule(arguments.b)
    if b is not None and (a.module, a.step, a.precision) != (b.module, b.step, b.precision):
        raise BridgeError(
            "The capsules are of different modules, steps or precisions.",
            evidence=tuple(f"{one.module}, step {one.step}, {one.precision}" for one in (a, b)),
            next="accel-bridge parity capsule --module NAME --step N, the same for both",
        )
    if b is not None:
        _check_same_parts(a, b)
    with only_stderr():
        import_torch()
        from accel_bridge.apps.capsules import replayed

        if b is None:
            kernels = _kernels(arguments.backend)
            judgement = replayed.judge(a, kernels)
            document = replayed.as_json(a, judgement)
            whose = "as recorded" if kernels is None else f"backend {arguments.backend}, here"
            lines = replayed.lines_of_one(a, judgement, whose)
        else:
            found = replayed.diverge(a, b)
            document, lines = replayed.as_json(a, found), replayed.lines_of_two(a, b, found)
    if arguments.json:
        print_json(lambda: document)
    else:
        print(printable("\n".join([*_facts(a, b), *lines]), keep="\n"))
    return 0 if document["passed"] else 1


def _check_same_parts(a: Capsule, b: Capsule) -> None:
    """Ranks must hold the same parts of tensors and of the batch; stages may hold other layers."""
    layouts = [
        f"{name} {one} | {two}"
        for name in sorted({*a.layout, *b.layout} - {"PP", "VPP"})
        if (one := a.layout.get(name, 1)) != (two := b.layout.get(name, 1))
    ]
    if layouts:
        raise BridgeError(
            "The capsules are of different layouts: operators have other parts of their tensors.",
            evidence=layouts,
            next="make both in one layout, with the same arguments and --module NAME --step N: "
            "the weights are the same in every layout",
        )


def _kernels(backend: str | None) -> Any:
    if backend is None:
        return None
    from accel_bridge.kernels import CONTRACTS

    chosen = select_here(backend).chosen
    return lambda name: chosen.kernels().resolve(CONTRACTS[name])


def _facts(a: Capsule, b: Capsule | None) -> list[str]:
    return [
        f"{letter}: {one.about.get('device', '?')}, {one.about.get('device name', '?')}, torch "
        f"{one.about.get('torch', '?')}, {one.precision}" + one.partly
        for letter, one in (("A", a), ("B", b))
        if one is not None
    ]


#: Largest difference of one token: where all is computed here in float32, and elsewhere.
EXACT, ENGINES = 1e-3, 0.5
_COLUMNS: Final = ("prompt", "tokens", "mean", "largest", "perplexity A", "B", "first that parts")


def add_logprobs(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "logprobs",
        help="log-probabilities of the same tokens by Megatron, Transformers, vLLM, SGLang",
        usage="%(prog)s A B [C] [--prompts FILE] [--limit X] [-- MEGATRON ARGUMENTS]",
        description="Scores the same tokens with two or three of: a checkpoint of Megatron's, a "
        "model directory of Hugging Face Transformers, a JSON file of vLLM or SGLang. The tokens "
        "are those of the file, or of --prompts. Ends with status 1 when a token differs by more "
        "than the limit, or the mean by a tenth of it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--prompts", metavar="FILE", type=Path, help="on each line a list of token ids: [1, 2, 3]"
    )
    parser.add_argument(
        "--limit",
        metavar="X",
        type=amount,
        help=f"largest difference of one token, in nats (default: {EXACT} where all is computed "
        f"here in float32, else {ENGINES})",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of models that are computed here (default: %(default)s)",
    )
    add_json_flag(parser)
    parser.add_argument("files", nargs="+", metavar="A B", type=Path, help="who scores the tokens")


def run_logprobs(arguments: argparse.Namespace) -> int:
    """Score, compare and print; 0 when no pair is beyond the limit."""
    files: list[Path] = arguments.files
    prompts = _prompts(files, arguments.prompts)
    exact = arguments.precision == "float32" and not any(file.is_file() for file in files)
    limit = arguments.limit or (EXACT if exact else ENGINES)
    with only_stderr():
        if not all(file.is_file() for file in files):
            import_torch()
        argv = getattr(arguments, "argv", [])
        scored = [logprobs.score(file, prompts, arguments.precision, argv) for file in files]
    pairs, passed = [], True
    for a, b in combinations(range(len(files)), 2):
        names = str(files[a]), str(files[b])
        found = logprobs.compare(scored[a], scored[b], names, limit)
        mean = sum(one.mean * one.tokens for one in found) / sum(one.tokens for one in found)
        largest = max(one.largest for one in found)
        within = largest <= limit and mean <= limit / 10
        passed = passed and within
        numbers = {"passed": within, "mean": mean, "largest": largest, "limit": limit}
        pairs.append({"names": names, **numbers, "prompts": [asdict(one) for one in found]})
        if not arguments.json:
            print_heading(f"A {names[0]}   B {names[1]}")
            print_table(_COLUMNS, [_cells(number, one) for number, one in enumerate(found)])
            print(
                f"\n{'PASS' if within else 'FAIL'}: mean difference {mean:.2g} (limit "
                f"{limit / 10:g}), largest {largest:.2g} (limit {limit:g})"
            )
    if arguments.json:
        print_json(lambda: {"passed": passed, "pairs": pairs})
    return 0 if passed else 1


def _prompts(files: list[Path], given: Path | None) -> list[tuple[int, ...]]:
    """The tokens that all score."""
    scored = next((file for file in files if file.is_file()), None)
    if len(files) not in (2, 3) or (given is None and scored is None):
        raise LogprobsError(
            "Two or three are compared, on tokens that one of them or --prompts names.",
            evidence=f"{len(files)} given, and no file with tokens",
            next="accel-bridge parity logprobs A B --prompts FILE",
        )
    if given is None:
        assert scored is not None
        return [one.tokens for one in logprobs.read_scored(scored)]
    try:
        lines = given.read_text(encoding="utf-8").splitlines()
        found = [tuple(map(int, json.loads(line))) for line in lines if line.strip()]
        if not found or min(map(len, found)) < 2:
            raise ValueError("no line, or a line with fewer than two tokens")
    except (OSError, ValueError, TypeError) as error:
        raise LogprobsError(
            f"{given} does not hold lists of token ids.",
            evidence=str(error)[:200],
            next="write on each line a list of at least two ids: [1, 2, 3]",
        ) from error
    return found


def _cells(number: int, one: Prompt) -> list[str]:
    parts = ""
    if one.parts is not None:
        place, token, a, b = one.parts
        parts = f"{place} (id {token}): {a:.4f} and {b:.4f}"
    sizes = [f"{one.mean:.2g}", f"{one.largest:.2g}", *(f"{x:.5g}" for x in one.perplexities)]
    return [str(number), str(one.tokens), *sizes, parts]
