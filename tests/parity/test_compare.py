"""Verdicts on recordings made by hand: what is beyond the rule, where, and of which kind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from accel_bridge.apps.comparison import Kind, NotComparable, compare
from accel_bridge.apps.comparison.report import as_json, verdict
from accel_bridge.recording import Recording, Step
from parity.made import MODULES, recording, rounding


def at(kind: str, name: str, factor: float, first_step: int = 1):  # type: ignore[no-untyped-def]
    """Values of one tensor are multiplied."""

    def change(its_kind: str, its_name: str, step: int, value: float) -> float:
        hit = (its_kind, its_name) == (kind, name) and step >= first_step
        return value * factor if hit else value

    return change


def drifting(step: int) -> float:
    return 5.0 - 0.1 * step + 1e-3 * (step - 1)


@pytest.mark.parametrize(
    ("kind", "name", "factor"),
    [
        *((k, n, 1.5) for k in ("weight", "output", "weight gradient") for n in MODULES),
        ("output", "layers.0.mlp", math.nan),
    ],
)
def test_the_first_tensor_is_named(kind: str, name: str, factor: float) -> None:
    found = compare(recording(), recording(at(kind, name, factor)))
    assert found.kind is Kind.DEFECT
    assert (found.first.step, found.first.kind, found.first.name) == (1, kind, name)
    assert name in found.first.where
    later = recording(at(kind, name, factor, first_step=2), loss=drifting)
    departed = compare(recording(), later).first
    assert (departed.step, departed.kind, departed.name) == (2, kind, name)


def test_a_small_wrong_factor_is_a_defect_and_low_precision_is_accumulation() -> None:
    found = compare(recording(), recording(at("output", "layers.0.mlp", 1.001)))
    assert found.kind is Kind.DEFECT
    assert found.first.distance.slope == pytest.approx(1e-3, rel=1e-2)
    assert any("1.001" in line for line in verdict(found))
    assert compare(recording(), recording(rounding(2**-8, 1))).kind is Kind.ACCUMULATION


@pytest.mark.parametrize(
    ("training", "fields", "said"),
    [
        ({"hidden_dropout": 0.1}, {"layout": {"TP": 2, "DP": 1}}, "dropout is on"),
        ({"attention_dropout": 0.1}, {"about": {"device": "NPU"}}, "dropout is on"),
        ({"hidden_dropout": 0.1}, {}, "a real defect"),  # one layout and device: equal masks
        ({"fp8": "hybrid"}, {}, "--limits"),
        ({"fp8": "hybrid"}, {"limits": {"output x": (1e-3, 1e-3, 1e-3)}}, "a real defect"),
    ],
)
def test_what_may_part_two_right_runs_is_said(
    training: dict[str, object], fields: dict[str, object], said: str
) -> None:
    identity = {"model": {}, "training": training}
    change = at("output", "layers.0.mlp", 1.5)
    one, two = recording(identity=identity), recording(change, identity=identity, **fields)
    found = compare(one, two)
    assert not found.passed
    assert said in verdict(found)[0]
    assert verdict(compare(one, recording(identity=identity, **fields)))[0].startswith("PASS")


def test_a_gradient_names_the_module_whose_backward_pass_made_it() -> None:
    found = compare(recording(), recording(at("gradient", "layers.0.mlp", 1.5)))
    assert found.first.name == "layers.0.mlp"
    assert found.first.before == "layers.1.attention"
    assert "the backward pass of layers.1.attention" in found.first.where


def test_a_small_difference_in_one_layer_only_is_a_defect() -> None:
    noisy = rounding(2**-8, 1)

    def change(kind: str, name: str, step: int, value: float) -> float:
        return noisy(kind, name, step, value) if "layers.1" in name else value

    found = compare(recording(), recording(change))
    assert found.first.isolated
    assert found.kind is Kind.DEFECT


def test_a_loss_that_drifts_fails_though_the_tensors_agree() -> None:
    found = compare(recording(), recording(loss=drifting))
    assert not found.passed
    assert found.first is None
    assert found.first_row.a.number == 2


def test_one_line_says_where_tensors_and_losses_depart() -> None:
    change = at("gradient", "layers.0.mlp", 1.5)
    lines = verdict(compare(recording(), recording(change, loss=drifting)))
    (line,) = [line for line in lines if "first" in line]
    assert "step 1, the backward pass of layers.1.attention" in line
    assert line.endswith("; loss or gradient norm: step 2")


@pytest.mark.parametrize("cause", ["weight decay", "learning rate"])
def test_an_optimizers_factor_in_most_weights_is_named(cause: str) -> None:
    """However little it changes: the weights of other layouts agree less."""
    before: list[float] = []

    def change(kind: str, name: str, step: int, value: float) -> float:
        if kind != "weight" or name == "embedding":
            return value
        if step == 1:
            before.append(value)
            return value
        was = before.pop(0) if cause == "learning rate" else 0.0
        return was + (value - was) * (1 - 1e-4)

    found = compare(recording(), recording(change))
    assert (found.kind, found.first.step) == (Kind.DEFECT, 2)
    assert f"the optimizer's {cause} (most weights, first layers.0.attention)" in found.first.where
    assert found.first.distance.slope == pytest.approx(-1e-4, rel=1e-2)


class TestWithAThirdRun:
    """bfloat16 runs A and B, and the same run in float32."""

    exact = recording()
    low = recording(rounding(2**-8, 1), precision="bfloat16")

    def test_two_roundings_agree(self) -> None:
        other = recording(rounding(2**-8, 2), precision="bfloat16")
        assert compare(self.low, other, self.exact).passed

    def test_losses_beyond_the_rule_are_acquitted(self) -> None:
        a = recording(
            rounding(2**-8, 1), precision="bfloat16", loss=lambda step: 5.0 - 0.1 * step + 0.01
        )
        b = recording(
            rounding(2**-8, 2), precision="bfloat16", loss=lambda step: 5.0 - 0.1 * step - 0.01
        )
        assert not compare(a, b).passed
        assert compare(a, b, self.exact).kind is Kind.ROUNDING

    @pytest.mark.parametrize("culprit", ["A", "B"])
    def test_the_run_that_is_off_is_named(self, culprit: str) -> None:
        worse = recording(rounding(2**-6, 3), precision="bfloat16")
        pair = (worse, self.low) if culprit == "A" else (self.low, worse)
        found = compare(*pair, self.exact)
        assert found.first.culprit == culprit
        assert found.kind is Kind.ACCUMULATION

    def test_without_it_the_same_difference_passes(self) -> None:
        worse = recording(rounding(2**-6, 3), precision="bfloat16")
        assert compare(self.low, worse).passed


def test_what_departs_in_later_micro_batches_only_is_a_consequence() -> None:
    """The embedding's dropout draws other numbers because the attention drew too few before."""

    def change(kind: str, name: str, step: int, value: float) -> float:
        return value * 1.5 if (kind, name) == ("output", "layers.0.attention") else value

    def with_first(made: Recording, factor: float) -> Recording:
        observations = []
        for item in made.observations:
            moments = item.moments
            if (item.kind, item.name) == ("output", "embedding"):
                item = replace(item, moments=moments.scaled(factor), first=moments)
            observations.append(replace(item, first=item.first or moments))
        return replace(made, observations=tuple(observations))

    found = compare(with_first(recording(), 1.0), with_first(recording(change), 1.2))
    assert [item.name for item in found.departures if item.kind == "output"] == [
        "layers.0.attention",
        "embedding",
    ]


class TestLayouts:
    def test_samples_of_other_parts_are_not_compared(self) -> None:
        """Another order of the values: the statistics are the same."""
        other = recording()
        turned = tuple(
            replace(item, sample=item.sample[::-1])
            for item in other.observations
            if item.sample is not None
        )
        split = replace(other, observations=turned, layout={"TP": 2, "DP": 1})
        assert compare(recording(), split).passed
        assert not compare(recording(), replace(split, layout={"TP": 1, "DP": 1})).passed

    def test_names_that_only_one_has_are_listed(self) -> None:
        other = recording()
        fewer = tuple(item for item in other.observations if item.name != "embedding")
        found = compare(recording(), replace(other, observations=fewer))
        assert found.only == (("embedding",), ())


OTHER = {
    "model": {"hidden_size": 128},
    "training": {"lr": 0.002, "clip_grad": 1.0},
    "weights": {"fingerprint": "4567"},
}
ODD, LOW = recording(precision="float8"), recording(precision="bfloat16")
BATCH = [replace(one, data=one.data + (one.number == 3)) for one in recording().steps]
#: Recordings, and what is said of them.
REFUSED: list[tuple[list[Recording], list[str]]] = [
    (
        [recording(), recording(identity=OTHER)],
        [
            "a.rec and b.rec",
            "model: hidden_size: 64 | 128",
            "training: lr: 0.001 | 0.002",
            "training: clip_grad: (absent) | 1.0",
            "weights: fingerprint: 0123 | 4567",
        ],
    ),
    ([recording(), recording(identity={"model": dict.fromkeys(map(str, range(50)))})], ["more"]),
    ([recording(), recording(steps=5)], ["steps: 1 to 4 | 1 to 5"]),
    ([recording(), replace(recording(), steps=tuple(BATCH))], ["the batch of step 3"]),
    ([recording(), LOW], ["precision: float32 | bfloat16"]),
    (
        [recording(identity={"model": {"padded_vocab_size": size}}) for size in (50304, 50432)],
        ["--make-vocab-size-divisible-by"],
    ),
    ([ODD, ODD], ["precision: no rule for 'float8'"]),
    ([LOW, LOW, LOW], ["not float32"]),
    (
        [recording(), recording(), recording(loss=lambda step: math.nan if step == 2 else 5.0)],
        ["third run: step 2: loss nan"],
    ),
]


@pytest.mark.parametrize(("recordings", "said"), REFUSED)
def test_what_is_not_the_same_run_is_refused(recordings: list[Recording], said: list[str]) -> None:
    a, b, third = [*recordings, None][:3]
    with pytest.raises(NotComparable, match="not recordings of the same run") as caught:
        compare(a, b, third, names=("a.rec", "b.rec", "c.rec"))
    assert [text for text in said if text not in str(caught.value)] == []


def test_median_time_leaves_the_first_step_out() -> None:
    steps = tuple(Step(number, 1.0, 1.0, 100.0 if number == 1 else 0.5, 0) for number in (1, 2, 3))
    assert recording(steps=3).seconds == 0.1
    assert replace(recording(), steps=steps).seconds == 0.5


def nan_at(*broken: int, value: float = math.nan):  # type: ignore[no-untyped-def]
    """Losses that are ``value`` at some steps; at all of them where none is named."""
    return lambda step: value if step in broken or not broken else 5.0 - 0.1 * step


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("steps", [(), (3,)])
def test_losses_that_are_no_numbers_are_no_agreement(steps: tuple[int, ...], value: float) -> None:
    """Neither in both runs, nor in one, nor with a third run that would acquit both."""
    broken = recording(loss=nan_at(*steps, value=value))
    for a, b in ((broken, broken), (recording(), broken), (broken, recording())):
        low = [replace(one, precision="bfloat16") for one in (a, b)]
        for found in (compare(a, b), compare(*low, recording())):
            assert found.kind is Kind.NOT_FINITE
            assert not found.passed
            text = "\n".join(verdict(found))
            as_json(found)
            assert text.startswith("FAIL: a loss or a gradient norm is not a finite number")
            assert f"first step beyond the rule: {(steps or (1,))[0]}" in text
            assert "precision" not in text
            assert ("both runs have failed" in text) == (a is b)


def norms(*broken: int) -> tuple[Step, ...]:
    """Steps of which some have no gradient norm."""
    return tuple(
        replace(step, gradient_norm=math.nan) if step.number in broken else step
        for step in recording().steps
    )


@pytest.mark.parametrize(
    ("precision", "a", "b", "kind"),
    [
        ("float32", (2,), (2,), Kind.NOT_FINITE),
        ("float16", (2,), (), Kind.NOT_FINITE),
        ("float16", (1, 2, 3, 4), (1, 2, 3, 4), Kind.NOT_FINITE),
        # Loss scaling skips a step in both runs.
        ("float16", (1,), (1,), Kind.AGREE),
    ],
)
def test_gradient_norms_that_are_no_numbers(
    precision: str, a: tuple[int, ...], b: tuple[int, ...], kind: Kind
) -> None:
    one, two = (replace(recording(precision=precision), steps=x) for x in (norms(*a), norms(*b)))
    assert compare(one, two).kind is kind
