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
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import megatron_programs
import recipe_data
from recipe_ranks import Nest
from recipe_runs import Recipe, Runner, recipes
from recipe_verdicts import Verdict


def main(words: Sequence[str] | None = None) -> int:
    """One line for each recipe; status 1 when one failed."""
    options = _parser().parse_args(words)
    found: list[tuple[Recipe, Verdict]] = []
    with tempfile.TemporaryDirectory(prefix="recipes-") as name:
        logs: Path = (options.logs or Path(name) / "logs").resolve()
        logs.mkdir(parents=True, exist_ok=True)
        data = Path(name) / "data"
        data.mkdir()
        checkout: Path = options.checkout
        recipe_data.make(checkout, data)
        runner = Runner(
            checkout, data, logs, options.backend, options.limit, options.tokenizer, options.most
        )
        if options.warm:
            nest = Nest(checkout, runner.environment())
            runner = dataclasses.replace(runner, nest=nest)
        for recipe, verdict in _verdicts(runner, options):
            found.append((recipe, verdict))
            print(
                f"{recipe.family}/{recipe.name}: {verdict.outcome} ({verdict.seconds} s, "
                f"{verdict.world} ranks) {verdict.reason}",
                flush=True,
            )
            found.sort(key=lambda one: (one[0].family, one[0].name))
            megatron_programs.write_verdicts(
                options.json,
                [({"family": one.family, "recipe": one.name}, verdict) for one, verdict in found],
            )
        if runner.nest is not None:
            runner.nest.close()
    if options.results:
        rows = [(recipe.family, recipe.name, verdict) for recipe, verdict in found]
        megatron_programs.write_rows("recipes", options, options.results, rows)
    counts = Counter(verdict.outcome for _, verdict in found)
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


def _parser() -> argparse.ArgumentParser:
    parser = megatron_programs.options(__doc__, "FAMILY/RECIPE")
    parser.add_argument("--jobs", type=int, default=1, help="recipes side by side")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds; start none after that")
    parser.add_argument("--tokenizer", choices=("own", "null"), default="own")
    parser.add_argument("--most", type=int, default=8, help="ranks above which no replica is added")
    return parser


if __name__ == "__main__":
    sys.exit(main())
