"""``accel-bridge parity logprobs``: the same tokens' log-probabilities by several engines."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Final

from accel_bridge.apps import logprobs
from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_heading,
    print_json,
    print_table,
)
from accel_bridge.apps.logprobs import LogprobsError, Prompt
from accel_bridge.process.parser import Parser, amount
from accel_bridge.process.torch_import import import_torch

#: Largest difference of one token: where all is computed here in float32, and elsewhere.
EXACT, ENGINES = 1e-3, 0.5
_COLUMNS: Final = ("prompt", "tokens", "mean", "largest", "perplexity A", "B", "first that parts")


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the subcommand."""
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


def run(arguments: argparse.Namespace) -> int:
    """Score, compare and print; 0 when no pair is beyond the limit."""
    files: list[Path] = arguments.files
    prompts = _prompts(files, arguments.prompts)
    exact = arguments.precision == "float32" and not any(file.is_file() for file in files)
    limit = arguments.limit or (EXACT if exact else ENGINES)
    with only_stderr():
        if not all(file.is_file() for file in files):
            import_torch()
        words = getattr(arguments, "words", [])
        scored = [logprobs.score(file, prompts, arguments.precision, words) for file in files]
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
