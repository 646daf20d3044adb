"""Recipes of a checkout, and what starts one of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import recipe_data
import recipe_inference
import recipe_rules
import yaml
from megatron_programs import Trainer
from recipe_verdicts import Phase, Verdict, judge, judge_text

CASES: Final = "tests/functional_tests/test_cases"
LISTED: Final = "tests/test_utils/recipes"

#: The script of recipes that no list of upstream's CI names (releases, and what is switched off).
SCRIPTS: Final[Mapping[str, str]] = {
    "bert": "examples/bert/pretrain_bert.py",
    "t5": "examples/t5/pretrain_t5.py",
    "hybrid": "pretrain_hybrid.py",
    "nemotron": "pretrain_hybrid.py",
    "mimo": "examples/mimo/train.py",
    "multimodal-llava": "pretrain_vlm.py",
}

#: The same for recipes that generate text.
GENERATOR: Final = "examples/inference/advanced/gpt_dynamic_inference.py"

#: Tokenizers whose files this checkout or recipe_data has; the others become a NullTokenizer.
OWN_TOKENIZERS: Final = (
    "None",
    "GPT2BPETokenizer",
    "BertWordPieceCase",
    "BertWordPieceLowerCase",
    "NullTokenizer",
)
#: Kinds of recipe that go on from a checkpoint of their first half.
RESUMES: Final = ("ckpt-resume", "frozen-resume")
_TOKENIZER_FLAGS: Final = (
    "--tokenizer-model",
    "--tiktoken-pattern",
    "--vocab-file",
    "--merge-file",
    "--tokenizer-type",
    "--vocab-size",
)


@dataclass(frozen=True)
class Recipe:
    """One model_config.yaml."""

    family: str
    name: str
    script: str
    config: Mapping[str, Any] = field(repr=False)

    @property
    def mode(self) -> str:
        """What upstream's runner does with it: pretraining, inference or rl."""
        return str(self.config.get("MODE", "pretraining"))


def scripts(checkout: Path) -> dict[tuple[str, str], str]:
    """(family, recipe) -> the script that upstream's CI starts."""
    found = {}
    for path in sorted((checkout / LISTED).rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        script = re.search(r"TRAINING_SCRIPT_PATH=([\w./]+)", text)
        family = re.search(r"^  model: (\S+)", text, re.M)
        if script and family:
            for name in re.findall(r"^\s*- test_case: \[([^\]]+)\]", text, re.M):
                found[family[1], name] = script[1].removeprefix("./")
    return found


def recipes(checkout: Path) -> Iterable[Recipe]:
    """Every recipe of the checkout."""
    listed = scripts(checkout)
    for path in sorted((checkout / CASES).glob("*/*/model_config.yaml")):
        family, name = path.parts[-3:-1]
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        recipe = Recipe(family, name, listed.get((family, name), ""), config)
        if not recipe.script:
            usual = SCRIPTS.get(family, "pretrain_gpt.py")
            generates = recipe.mode == "inference"
            recipe = replace(recipe, script=GENERATOR if generates else usual)
        yield recipe


def tokens(arguments: recipe_rules.Arguments) -> None:
    """Keep the recipe's tokenizer where its files are ours, else put a NullTokenizer in place."""
    own = str(arguments.get("--tokenizer-type")) in OWN_TOKENIZERS
    if own and "--tokenizer-model" not in arguments:
        return
    for flag in _TOKENIZER_FLAGS:
        arguments.pop(flag, None)
    arguments["--tokenizer-type"] = "NullTokenizer"
    arguments["--vocab-size"] = recipe_data.VOCABULARY


@dataclass(frozen=True)
class Runner:
    """Where and how recipes run."""

    trainer: Trainer
    data: Path
    logs: Path
    most: int = recipe_rules.MOST

    def run(self, recipe: Recipe) -> Verdict:
        """All phases of one recipe, and what they show."""
        if reason := self._not_here(recipe):
            return Verdict("harness", reason)
        with tempfile.TemporaryDirectory(prefix="recipe-") as name:
            directory = Path(name)
            if recipe.mode == "inference":
                return self._generate(recipe, directory)
            phases: list[Phase] = []
            resumes = recipe.config.get("TEST_TYPE") in RESUMES
            for number, key in enumerate(self.keys(recipe), start=1):
                phase = self._phase(recipe, key, directory, number, resumes=resumes)
                phases.append(phase)
                if phase.status:
                    break
                if resumes and number == 1:
                    _back(directory / "save", recipe_rules.SAVED)
            verdict = judge(phases, recipe.config, resumes=resumes)
            if verdict.outcome == "passed" and not _check_log(recipe, directory / "logs"):
                return Verdict("failed", "the recipe's own look at its log")
            return verdict

    def signature(self, recipe: Recipe) -> str:
        """What two recipes share that differ in nothing but the machine that upstream wants."""
        parts: list[object] = [recipe.script, recipe.mode]
        for key, value in sorted(recipe.config.items()):
            if key.startswith("MODEL_ARGS") and value:
                parts.append((key, self._small(dict(value), resumes=False)))
            elif key not in ("METRICS", "LAUNCHER"):
                parts.append((key, value))
        return repr(parts)

    def _small(
        self, given: recipe_rules.Arguments, *, resumes: bool
    ) -> tuple[recipe_rules.Arguments, int]:
        tokens(given)
        if "--dataset-provider" in given:  # the image sets of MIMO are upstream's own
            given |= {"--dataset-provider": "mock", "--model-provider": "mock"}
            given.pop("--language-model-checkpoint", None)
        return recipe_rules.scale(given, resumes=resumes, most=self.most)

    @staticmethod
    def _not_here(recipe: Recipe) -> str:
        """Why this recipe cannot be started, or ""."""
        given = recipe.config.get("MODEL_ARGS")
        if recipe.mode == "rl" or not given:
            return "reinforcement learning wants a checkpoint and prompts of upstream's"
        if not all(flag.startswith("--") for flag in given):
            return "a recipe of NeMo, which has another launcher"
        return ""

    @staticmethod
    def keys(recipe: Recipe) -> list[str]:
        """Which arguments the recipe's runs take, one after the other."""
        if recipe.config.get("TEST_TYPE") == "checkpoint-consistency":
            return sorted(key for key in recipe.config if re.fullmatch(r"MODEL_ARGS(_\d+)?", key))
        if recipe.config.get("TEST_TYPE") in RESUMES:
            second = "MODEL_ARGS_2" if "MODEL_ARGS_2" in recipe.config else "MODEL_ARGS"
            return ["MODEL_ARGS", second]
        return ["MODEL_ARGS"]

    def _generate(self, recipe: Recipe, directory: Path) -> Verdict:
        """Train a small checkpoint of the family, then generate from it."""
        family = next((word for word in ("hybrid", "moe") if word == recipe.family), "gpt")
        tokenizer = recipe_inference.make_tokenizer(directory)
        recipe_inference.make_prompts(self.data)
        places = self._places(recipe, directory, directory / "save", 1)
        given = dict(recipe.config["MODEL_ARGS"])
        # A smaller layout, as when it generates.
        recipe_rules.processes(given, most=1, limit=recipe_inference.RANKS)
        script, line = recipe_inference.checkpoint(family, given, tokenizer, directory / "save")
        status, output = self._start(recipe, 0, line, 1, places, script)
        if status:
            return judge([Phase(status, output)], {}, resumes=False)
        words, world = recipe_inference.scale(
            recipe.config["MODEL_ARGS"], tokenizer, directory / "save"
        )
        line = [_expand(word, places) for word in words]
        status, output = self._start(recipe, 1, line, world, places)
        written = Path(places["INFERENCE_OUTPUT_PATH"])
        text = written.read_text(encoding="utf-8") if written.is_file() else ""
        return judge_text(Phase(status, output), text)

    def _phase(
        self, recipe: Recipe, key: str, directory: Path, number: int, *, resumes: bool
    ) -> Phase:
        small, world = self._small(dict(recipe.config[key]), resumes=resumes)
        second = resumes and number == 2
        load = directory / ("save" if second else "load")
        places = self._places(recipe, directory, load, number)
        line: list[str] = []
        for word in recipe_rules.words(small):
            # The blend is several words.
            line += (
                _expand(word, places).split() if "DATA_BLEND" in word else [_expand(word, places)]
            )
        status, output = self._start(recipe, number, line, world, places)
        return Phase(status, output, recipe_rules.number(small, "--train-iters", 0))

    def _places(self, recipe: Recipe, directory: Path, load: Path, number: int) -> dict[str, str]:
        """The variables of upstream's runner and of the recipe."""
        places = {
            "DATA_PATH": str(self.data),
            "DATA_CACHE_PATH": str(directory / "cache"),
            "CHECKPOINT_SAVE_PATH": str(directory / "save"),
            "CHECKPOINT_LOAD_PATH": str(load),
            "TENSORBOARD_PATH": str(directory / f"tensorboard{number}"),
            "OUTPUT_PATH": str(directory),
            "LOG_DIR": str(directory / "logs"),
            "REPEAT": "1",
            "INFERENCE_OUTPUT_PATH": str(directory / "generated.json"),
            "DATA_BLEND": "0.5 {0} 0.5 {0}".format(
                self.data / recipe_data.DIRECTORY / "my-gpt3_00_text_document"
            ),
        }
        places |= {
            name: _expand(str(value), places)
            for name, value in (recipe.config.get("ENV_VARS") or {}).items()
        }
        if "gb200" in recipe.name:
            # Blackwell has no use for it; Megatron asks for 1 where the device is an older one.
            places["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        return places

    def _start(
        self,
        recipe: Recipe,
        number: int,
        line: list[str],
        world: int,
        places: Mapping[str, str],
        script: str = "",
    ) -> tuple[int, str]:
        """Status and output of a script, the recipe's own unless one is named."""
        log = self.logs / f"{recipe.family}-{recipe.name}-{number}.log"
        trainer = replace(self.trainer, script=script or recipe.script)
        status, output = trainer.train(world, line, trainer.checkout, log, places)
        # The recipe's own checks get a copy.
        logs = Path(places["LOG_DIR"])
        logs.mkdir(exist_ok=True)
        shutil.copy(log, logs / log.name)
        return status, output


def _check_log(recipe: Recipe, logs: Path) -> bool:
    """What the recipe's AFTER_SCRIPT finds in the log, but for upstream's checkpoints."""
    script = recipe.config.get("AFTER_SCRIPT")
    if not script or recipe.config.get("TEST_TYPE") == "frozen-start":
        return True
    done = subprocess.run(
        ["bash", "-c", f"EXIT_CODE=0\n{script}\nexit $EXIT_CODE"],
        env={**os.environ, "LOG_DIR": str(logs)},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _expand(text: str, places: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: places.get(found[1], found[0]), text)


def _back(directory: Path, iteration: int) -> None:
    """Take the checkpoint after ``iteration`` for the newest, as upstream's runner does."""
    tracker = directory / "latest_checkpointed_iteration.txt"
    if tracker.is_file():
        for path in directory.glob("iter_*"):
            if int(path.name.removeprefix("iter_")) > iteration:
                shutil.rmtree(path)
        tracker.write_text(f"{iteration}\n", encoding="utf-8")
