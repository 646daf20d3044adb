"""Write docs/mindspeed-llm.json: what Megatron's parser makes of MindSpeed-LLM's training scripts.

    python tests/conformance/mindspeed/mindspeed_flags.py CHECKOUT

Each training script of CHECKOUT's `examples/mcore` runs with a `torchrun` that only notes its
words; they go through the parser of the installed Megatron with the bridge's flags. The page
docs/results.md and docs/flags.md are made from the file (tools/generated_docs.py).
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

from mindspeed_rules import flags_of

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs/mindspeed-llm.json"
_TRAINS = re.compile(r"(pretrain_gpt|posttrain_gpt|pretrain_mamba|pretrain_deepseek4)\.py")
_NOTE = '#!/bin/bash\nprintf "%s\\0" "$@" > "$NOTED"\n'
#: Flags whose values are paths that users fill in.
_PATHS = (
    "--data-path",
    "--load",
    "--save",
    "--tokenizer-name-or-path",
    "--tokenizer-model",
    "--hf-cfg-dir",
    "--tensorboard-dir",
)


def command_lines(checkout: Path) -> dict[str, tuple[int, list[str]]]:
    """Name of a script -> its number of processes and the words of its training program."""
    examples = checkout / "examples/mcore"
    found = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "logs").mkdir()
        for program in ("torchrun", "python", "python3"):
            path = directory / program
            path.write_text(_NOTE)
            path.chmod(0o755)
        for script in sorted(examples.rglob("*.sh")):
            if not _TRAINS.search(script.read_text(encoding="utf-8")):
                continue
            noted = directory / "noted"
            noted.unlink(missing_ok=True)
            subprocess.run(
                ["bash", str(script)],
                cwd=directory,
                env={"PATH": f"{directory}:/usr/bin:/bin", "NOTED": str(noted), "HOME": name},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
            )
            words = noted.read_text(encoding="utf-8").split("\0")[:-1] if noted.exists() else []
            at = next((i for i, word in enumerate(words) if _TRAINS.search(word)), None)
            if at is not None:
                found[str(script.relative_to(examples))] = (_ranks(words[:at]), words[at + 1 :])
    return found


def _ranks(words: list[str]) -> int:
    """Processes of a torchrun."""
    count = 1
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word.strip("-").replace("-", "_") in ("nproc_per_node", "nnodes") and value.isdigit():
            count *= int(value)
    return count


def main(checkout: Path) -> int:
    """Write the file."""
    scripts = command_lines(checkout)
    importlib.import_module("accel_bridge.auto")
    arguments = importlib.import_module("megatron.training.arguments")
    known = set()
    parse = importlib.import_module("argparse").ArgumentParser.parse_known_args

    def noting(parser: object, *words: object, **options: object) -> object:
        known.update(getattr(parser, "_option_string_actions", ()))
        return parse(parser, *words, **options)

    importlib.import_module("argparse").ArgumentParser.parse_known_args = noting
    outcomes: dict[str, str] = {}
    data = tempfile.TemporaryDirectory()
    os.chdir(data.name)
    for field in ("input_ids", "labels", "attention_mask"):
        Path(f"x_packed_{field}_document.bin").touch()
    flags: collections.Counter[str] = collections.Counter()
    for name, (ranks, words) in scripts.items():
        found = flags_of(words)
        given = {flag: ["x"] if flag in _PATHS else values for flag, values in found}
        flags.update(given.keys())
        sys.argv = ["pretrain_gpt.py", *(one for flag in given for one in (flag, *given[flag]))]
        os.environ |= {"WORLD_SIZE": str(ranks), "RANK": "0"}
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                arguments.parse_args()
            outcomes[name] = "parses"
        except SystemExit:
            outcomes[name] = said.getvalue().strip().splitlines()[-1]
        # Ours are errors of their own; whatever comes is the answer.
        except Exception as error:
            outcomes[name] = str(error).splitlines()[0]
    parses = sum(outcome == "parses" for outcome in outcomes.values())
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    document = {
        "date": date.today().isoformat(),
        "mindspeed_llm": commit or old.get("mindspeed_llm", ""),
        "megatron": version("megatron-core"),
        "scripts": outcomes,
        "flags": dict(sorted(flags.items())),
        "unknown": sorted(set(flags) - known),
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{parses} of {len(outcomes)} parse")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
