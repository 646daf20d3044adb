"""The data set of numbers that MindSpeed's runs train on.

Megatron's mock data are others in each version.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path


def write_numbers(directory: Path, vocabulary: int) -> None:
    """Write ``numbers_text_document``: sixty rows of numbers below ``vocabulary``."""
    chance = random.Random(1)
    lines = (" ".join(str(chance.randrange(vocabulary)) for _ in range(70)) for _ in range(60))
    text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    (directory / "numbers.jsonl").write_text(text, encoding="utf-8")
    words = "--input numbers.jsonl --output-prefix numbers --tokenizer-type NullTokenizer"
    subprocess.run(
        [
            *(sys.executable, "-m", "accel_bridge", "preprocess"),
            *(*words.split(), "--vocab-size", str(vocabulary)),
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )
