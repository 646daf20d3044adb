"""Random trainings are drawn again from their seed, and other numbers are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from megatron_programs import Trainer
from mixtures import Mixture, draw
from parity.made import Change, recording
from random_training import Try, flags_in, verdict
from recipe_verdicts import numbers_in
from rehearsed import difference

from accel_bridge.recording import write

NOTHING = Mixture(1, (), "", ())
LINE = " iteration {}/ 5 | lm loss: {:.6E} | loss scale: 1.0 | grad norm: {:.3f} |\n"


def test_values_that_a_megatron_does_not_know_are_not_drawn() -> None:
    page = "[--timing-log-level {0,2}]\n  --normalization {LayerNorm}\n  --swiglu\n"
    known = flags_in(page + "--rerun-mode {disabled}")
    assert known == {
        "--timing-log-level": ["0", "2"],
        "--normalization": ["LayerNorm"],
        "--swiglu": [],
        "--rerun-mode": ["disabled"],
    }
    drawn = [draw(seed, known, 5) for seed in range(40)]
    assert drawn == [draw(seed, known, 5) for seed in range(40)]
    neutral = {text for one in drawn for variant in one.variants for text in variant.neutral}
    assert neutral == {"--timing-log-level 2"}
    what = {text for one in drawn for text in one.what}
    assert "--swiglu" in what
    assert not any(text.startswith("--normalization") for text in what)


@pytest.mark.parametrize(
    ("loss", "norm", "wrong"), [(9.0, 1.5, ""), (9.1, 1.5, "loss"), (9.0, 1.8, "norm")]
)
def test_another_number_is_wrong(tmp_path: Path, loss: float, norm: float, wrong: str) -> None:
    runs = Try(Trainer(tmp_path), NOTHING, tmp_path, tmp_path)
    plain = numbers_in("".join(LINE.format(step, 9.0, 1.5) for step in (2, 3)))
    found = numbers_in(LINE.format(2, 9.0, 1.5) + LINE.format(3, loss, norm))
    error = runs.difference(found, plain)
    assert wrong in error
    assert verdict(error) == ("WRONG" if wrong else "ok")


@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_a_wrong_gradient_of_one_weight_is_wrong(tmp_path: Path, size: float) -> None:
    """But not where it is nothing but rounding."""

    def made(factor: float) -> Change:
        def change(kind: str, name: str, step: int, value: float) -> float:
            return value * factor if (kind, name) == ("weight gradient", name_of) else value

        return change

    name_of = next(one.name for one in recording().observations if one.kind == "weight gradient")
    runs = Try(Trainer(tmp_path), NOTHING, tmp_path, tmp_path)
    write(recording(made(size)), tmp_path / "plain.rec")
    write(recording(made(size * 1.5)), tmp_path / "0.rec")
    assert (name_of in runs._tensors("0")) == (size == 1.0)
    write(recording(made(1.5)), tmp_path / "0.rec")
    assert name_of in runs._tensors("0")
    assert not runs._tensors("plain")


def test_a_collective_that_a_rehearsal_has_not_is_found() -> None:
    call = [2, "all_reduce", 0, "float32", "", 64, "", "", 1]
    real = {"parameters": 9, "own_groups": [{"ranks": [0, 1]}], "calls": [call, call]}
    larger = [[*call[:5], 128, *call[6:]], call]
    assert not difference(real, real)
    assert "all_reduce" in difference(real, real | {"calls": [call]})
    assert "128" in difference(real, real | {"calls": larger})
    assert not difference(real, real | {"calls": larger}, sizes=False)
    assert "parameters" in difference(real, real | {"parameters": 8})
