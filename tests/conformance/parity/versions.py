"""One training on several Megatrons: the same weights and data, in float32.

    python tests/conformance/parity/versions.py [NAME=]CHECKOUT... [--json tools/versions.json]

CHECKOUT is a directory with a Megatron's package and its pretrain_gpt.py, oldest first; the
installed one is the last but `main`. Each is recorded and compared with the one before it, and with
the oldest; one with an injected fault must depart. `make docs` writes the table of
docs/compatibility.md from the JSON. `REASONS` says what upstream changed where two depart.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "megatron"))

from layouts import COMMON, MODELS
from megatron_programs import named, version_of
from recipe_data import write_indexed
from recorder import departs, record

from accel_bridge.recording import Recording

STEPS: Final = 5
#: (version, model) -> what upstream changed since the version before.
REASONS: Final[Mapping[tuple[str, str], str]] = {}


@dataclass(frozen=True, slots=True)
class Row:
    """One model on one Megatron.

    :param loss: of the last step; None where it was not recorded, and ``departs`` says why.
    :param first: largest relative difference of a loss from the first Megatron's.
    :param departs: what departs first from the Megatron before; empty for nothing.
    """

    megatron: str
    model: str
    loss: float | None
    first: float | None
    departs: str
    reason: str = ""


def common(a: Recording, b: Recording) -> tuple[Recording, Recording]:
    """Both, with the arguments that both Megatrons set; the versions may differ."""

    def shared(one: Recording, other: Recording) -> dict[str, dict[str, Any]]:
        return {
            section: {
                name: value
                for name, value in values.items()
                if None not in (value, other.identity[section].get(name))
            }
            for section, values in one.identity.items()
            if section != "versions"
        }

    return replace(a, identity=shared(a, b)), replace(b, identity=shared(b, a))


def rows(model: str, made: Sequence[tuple[str, Recording | str]]) -> list[Row]:
    """The table's rows of a model."""
    found = []
    recorded: list[Recording] = []
    for name, one in made:
        if isinstance(one, str):
            found.append(Row(name, model, None, None, one))
            continue
        recorded.append(one)
        far = max(
            abs(x.loss - y.loss) / y.loss for x, y in zip(one.steps, recorded[0].steps, strict=True)
        )
        words = departs(*common(recorded[-2], one)) if len(recorded) > 1 else ""
        reason = REASONS.get((name, model), "") if words else ""
        found.append(Row(name, model, one.steps[-1].loss, far, words, reason))
    return found


def words_of(model: str, data: Path) -> list[str]:
    """Megatron's arguments."""
    words = [word for word in COMMON if word != "--mock-data"]
    words += [*MODELS[model], "--train-iters", str(STEPS), "--vocab-size", "255"]
    return words + f"--data-path {data} --split 100,0,0 --init-method-std 0.1".split()


def main() -> int:
    """Print a row for each model and Megatron; status 1 where one departs for no known reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="*")
    parser.add_argument("--models", default="dense,moe,mla")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    trees: list[tuple[str, Path | None]] = [*map(named, arguments.checkouts)]
    newest = bool(trees) and trees[-1][0] == "main"
    trees.insert(len(trees) - newest, (version_of(Path("/nowhere")), None))
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "text"
        source = random.Random(1)
        write_indexed(data, [[[source.randrange(255) for _ in range(300)]] for _ in range(64)])
        for model in arguments.models.split(","):
            made = []
            for name, checkout in trees:
                out = Path(directory) / f"{model}-{name}" / "run.rec"
                made.append((name, record(out, words_of(model, data), checkout=checkout)))
            for row in rows(model, made):
                print(" | ".join(map(str, asdict(row).values())), flush=True)
                found.append(row)
        words = words_of("dense", data)
        last = record(Path(directory) / "last" / "run.rec", words)
        injected = record(Path(directory) / "injected" / "run.rec", words, error="scale")
        named_error = [row.departs for row in rows("dense", [("", last), ("", injected)])][-1]
    print(f"an injected fault: {named_error or 'not found'}")
    if arguments.json:
        text = json.dumps([asdict(row) for row in found], indent=1)
        arguments.json.write_text(f"{text}\n", encoding="utf-8")
    unknown = any(row.departs and not row.reason for row in found)
    return int(unknown or "decoder.layers.2.mlp" not in named_error)


if __name__ == "__main__":
    raise SystemExit(main())
