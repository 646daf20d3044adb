"""Compare instruction data with MindSpeed-LLM's own tool, byte for byte, and record its answers.

    python tests/conformance/mindspeed/mindspeed_data.py MINDSPEED_LLM MEGATRON_0_12
        [--samples 1000] [--only TEXT] [--update]

MINDSPEED_LLM is a checkout, MEGATRON_0_12 a checkout or site-packages directory with Megatron 0.12;
`datasets` must be importable (or in a directory named by PYTHONPATH). --update writes the judge's
digests to tests/preprocess/mindspeed/answers.json, which the tests compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.preprocess.mindspeed.cases import CASES, Case, digest  # noqa: E402
from tests.preprocess.mindspeed.ours import preprocess, words  # noqa: E402
from tests.preprocess.mindspeed.samples import write, write_tokenizer  # noqa: E402

ANSWERS = ROOT / "tests/preprocess/mindspeed/answers.json"


def main() -> int:
    """The exit status: 1 where a file differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mindspeed_llm", type=Path)
    parser.add_argument("megatron", type=Path)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--update", action="store_true")
    asked = parser.parse_args()
    cases = [case for case in CASES if asked.only in case.name]
    with tempfile.TemporaryDirectory() as directory:
        answers, differing = compare(cases, asked, Path(directory))
    if asked.update:
        commit = subprocess.run(
            ["git", "-C", asked.mindspeed_llm, "rev-parse", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        known = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {"digests": {}}
        digests = {**known["digests"], **answers}
        document = {
            "date": date.today().isoformat(),
            "mindspeed_llm": commit or known.get("mindspeed_llm", ""),
            "samples": asked.samples,
            "digests": {case.name: digests[case.name] for case in CASES if case.name in digests},
        }
        ANSWERS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(cases) - len(differing)} of {len(cases)} are equal, byte for byte")
    return 1 if differing else 0


def compare(
    cases: list[Case], asked: argparse.Namespace, directory: Path
) -> tuple[dict[str, str], list[str]]:
    """The judge's digests, and the names of the cases that differ."""
    tokenizer = write_tokenizer(directory / "tokenizer")
    data = {case.data: write(case.data, asked.samples, directory) for case in cases}
    judged = judge(cases, asked, directory, data, tokenizer)
    answers, differing = {}, []
    for case, error in zip(cases, judged, strict=True):
        if error is not None:
            print(f"{case.name}: the judge stopped: {error}")
            differing.append(case.name)
            continue
        answers[case.name] = digest(directory / f"judge-{case.name}", case)
        ours = directory / f"ours-{case.name}"
        found = preprocess(case, data[case.data], ours, tokenizer)
        same = found == answers[case.name]
        if not same:
            differing.append(case.name)
        print(f"{case.name}: {'equal' if same else 'DIFFERS ' + found[-400:]}", flush=True)
    return answers, differing


def judge(
    cases: list[Case],
    asked: argparse.Namespace,
    directory: Path,
    data: dict[str, Path],
    tokenizer: Path,
) -> list[str | None]:
    """Run MindSpeed-LLM's tool on every case; its errors."""
    commands = [
        [
            *words(case, data[case.data], directory / f"judge-{case.name}", tokenizer),
            *("--workers", "1", "--cache-dir", str(directory / "cache"), "--overwrite-cache"),
        ]
        for case in cases
    ]
    search = [str(asked.megatron), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests/conformance/mindspeed/mindspeed_judge.py"),
            str(asked.mindspeed_llm),
        ],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(search),
            "HF_HOME": str(directory / "hub"),
            "HF_HUB_OFFLINE": "1",
        },
    )
    if done.returncode != 0:
        sys.exit(f"the judge did not run:\n{done.stderr[-2000:]}")
    answers: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return answers


if __name__ == "__main__":
    sys.exit(main())
