"""Runs Megatron's own functional recipes, made small, with the checkout's unedited scripts.

    python tests/conformance/megatron/recipes.py CHECKOUT [--only REGEX] [--backend cpu] [--jobs 1]
        [--limit 300] [--within SECONDS] [--warm] [--most 8] [--json FILE] [--logs DIRECTORY]

CHECKOUT has Megatron's tests/functional_tests, its scripts and its package (or the installed
package serves). How a recipe is made small: recipe_rules.py. What an end means: recipe_verdicts.py.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import megatron_programs
import recipe_data
from megatron_programs import Row, Trainer
from recipe_runs import Recipe, Runner, recipes
from recipe_verdicts import Verdict


def main() -> int:
    """One line for each recipe; status 1 when one failed."""
    parser = megatron_programs.options(__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", default="", help="a regular expression of FAMILY/RECIPE")
    parser.add_argument("--jobs", type=int, default=1, help="recipes side by side")
    parser.add_argument("--within", type=float, default=1e9, help="seconds; start none after that")
    parser.add_argument("--most", type=int, default=8, help="ranks above which no replica is added")
    asked = parser.parse_args()
    checkout: Path = asked.checkout.resolve()
    with tempfile.TemporaryDirectory(prefix="recipes-") as name:
        data = Path(name) / "data"
        data.mkdir()
        recipe_data.make(checkout, data)
        python, logs = (
            megatron_programs.python_of(asked),
            megatron_programs.logs_of(asked, Path(name)),
        )
        trainer = Trainer(checkout, asked.backend, python=python, limit=asked.limit)
        rows = _rows(Runner(trainer, data, logs, asked.most), asked)
        return megatron_programs.finish(asked, (("recipes", row) for row in rows))


def _rows(runner: Runner, asked: argparse.Namespace) -> Iterator[Row]:
    """Every chosen recipe as it ends; recipes that differ in nothing here run once."""
    began = time.monotonic()

    def one(recipe: Recipe) -> tuple[Verdict, float]:
        start = time.monotonic()
        if start - began > asked.within:
            return Verdict("harness", "no time was left"), 0.0
        return runner.run(recipe), round(time.monotonic() - start, 1)

    checkout = runner.trainer.checkout
    version = megatron_programs.version_of(checkout)
    groups: dict[str, list[Recipe]] = {}
    for recipe in recipes(checkout):
        if re.search(asked.only, f"{recipe.family}/{recipe.name}"):
            groups.setdefault(runner.signature(recipe), []).append(recipe)
    with ThreadPoolExecutor(asked.jobs) as pool:
        running = {pool.submit(one, alike[0]): alike for alike in groups.values()}
        for done in as_completed(running):
            (outcome, reason), seconds = done.result()
            for recipe in running[done]:
                yield Row(version, recipe.family, recipe.name, outcome, 1, reason, None, seconds)


if __name__ == "__main__":
    raise SystemExit(main())
