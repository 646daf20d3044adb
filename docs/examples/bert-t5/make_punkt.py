"""Learns NLTK's sentence model from your own text, for machines without a network.

    python make_punkt.py CORPUS.jsonl DIRECTORY

DIRECTORY becomes a value for NLTK_DATA. NLTK's own model, learned from much more text, is better
where it can be downloaded: python -m nltk.downloader -d DIRECTORY punkt_tab
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nltk.tokenize.punkt import PunktTrainer, save_punkt_params


def main(corpus: Path, directory: Path) -> None:
    """Learn which words end with a full stop that ends no sentence."""
    trainer = PunktTrainer()
    trainer.INCLUDE_ALL_COLLOCS = True
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            trainer.train(json.loads(line)["text"], finalize=False)
    trainer.finalize_training()
    target = directory / "tokenizers" / "punkt_tab" / "english"
    target.mkdir(parents=True)
    parameters = trainer.get_params()
    save_punkt_params(parameters, dir=str(target))
    print(f"{target}: {len(parameters.abbrev_types)} abbreviations")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
