"""Runs Megatron's own functional recipes, made small, with the checkout's unedited scripts.

    python tests/conformance/megatron/recipes.py CHECKOUT [--only REGEX] [--backend cpu] [--jobs 1]
        [--limit 300] [--budget SECONDS] [--tokenizer own|null] [--warm] [--most 8]
        [--json FILE] [--results FILE] [--logs DIRECTORY]

CHECKOUT has Megatron's tests/functional_tests, its scripts and its package (or the installed
package serves). How a recipe is made small: recipe_rules.py. What an end means: recipe_verdicts.py.
Each recipe is one line, and a row of the JSON file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import recipe_data
from recipe_ranks import Nest
from recipe_runs import Recipe, Runner, recipes
from recipe_verdicts import Verdict


def main(words: Sequence[str] | None = None) -> int:
    """One line for each recipe; status 1 when one failed."""
    options = _parser().parse_args(words)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="recipes-") as name:
        logs: Path = (options.logs or Path(name) / "logs").resolve()
        logs.mkdir(parents=True, exist_ok=True)
        data = Path(name) / "data"
        data.mkdir()
        checkout: Path = options.checkout.resolve()
        recipe_data.make(checkout, data)
        runner = Runner(
            checkout, data, logs, options.backend, options.limit, options.tokenizer, options.most
        )
        if options.warm:
            nest = Nest(checkout, runner.environment())
            runner = dataclasses.replace(runner, nest=nest)
        for recipe, verdict in _verdicts(runner, options):
            rows.append(
                {"family": recipe.family, "recipe": recipe.name} | dataclasses.asdict(verdict)
            )
            print(
                f"{recipe.family}/{recipe.name}: {verdict.outcome} ({verdict.seconds} s, "
                f"{verdict.world} ranks) {verdict.reason}",
                flush=True,
            )
            if options.json:
                rows.sort(key=lambda row: (row["family"], row["recipe"]))
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        if runner.nest is not None:
            runner.nest.close()
    if options.results:
        write_results(rows, checkout, options.backend, options.only, options.results)
    counts = Counter(row["outcome"] for row in rows)
    print(dict(counts))
    return int(counts["failed"] > 0)


def _verdicts(runner: Runner, options: argparse.Namespace) -> Iterator[tuple[Recipe, Verdict]]:
    """Every chosen recipe as it ends; recipes that differ in nothing here run once."""
    began = time.monotonic()

    def one(recipe: Recipe) -> Verdict:
        if time.monotonic() - began > options.budget:
            return Verdict("harness", "no time was left", 0, {}, 0.0)
        return runner.run(recipe)

    groups: dict[str, list[Recipe]] = {}
    for recipe in recipes(runner.checkout):
        if re.search(options.only, f"{recipe.family}/{recipe.name}"):
            groups.setdefault(runner.signature(recipe), []).append(recipe)
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(one, alike[0]): alike for alike in groups.values()}
        for done in as_completed(running):
            for recipe in running[done]:
                yield recipe, done.result()


def write_results(
    rows: Sequence[dict[str, object]], checkout: Path, backend: str, only: str, path: Path
) -> None:
    """The verdicts as a file of tools/compatibility."""
    sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
    from cells import version_of
    from compatibility_results import Row, new_run

    command = "make megatron-recipes MEGATRON=CHECKOUT"
    command += f" ARGS={shlex.quote(f'--only {shlex.quote(only)}')}" if only else ""
    new_run(
        "recipes",
        "ascend (emulated)" if backend == "ascend" else backend,
        command,
        [
            Row(
                version_of(checkout),
                str(row["family"]),
                str(row["recipe"]),
                str(row["outcome"]),
                reason=str(row["reason"]),
                seconds=float(str(row["seconds"])) or None,
            )
            for row in rows
        ],
    ).write(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    parser.add_argument("--only", default="", help="a regular expression of FAMILY/RECIPE")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "ascend", "cuda"))
    parser.add_argument("--jobs", type=int, default=1, help="recipes side by side")
    parser.add_argument("--limit", type=float, default=300, help="seconds of one phase")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds; start none after that")
    parser.add_argument("--tokenizer", choices=("own", "null"), default="own")
    parser.add_argument("--warm", action="store_true", help="fork ranks from one parent (CPU)")
    parser.add_argument("--most", type=int, default=8, help="ranks above which no replica is added")
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    parser.add_argument("--results", type=Path, help="write them for tools/compatibility, too")
    parser.add_argument("--logs", type=Path, help="keep every run's output in this directory")
    return parser


if __name__ == "__main__":
    sys.exit(main())
