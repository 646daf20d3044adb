"""How MindSpeed-LLM's scripts are made small, and what a comparison says."""

from __future__ import annotations

import math

import mindspeed_rules as rules
import mindspeed_scripts as scripts
import pytest

SCRIPT = """--spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec --num-layers 28
--hidden-size 1024 --num-attention-heads 2 --tensor-model-parallel-size 8 --bf16 --lr 1.25e-6
--data-path your data path --noop-layers 46,47 --pipeline-model-parallel-size 4
--lora-target-modules linear_qkv linear_proj --lora-r 16 --finetune --seed 42 --seed 42
--rotary-base 1000000 --load x --full-attention-interval 4""".split()


def test_sizes_shrink_and_computations_stay() -> None:
    small = dict(rules.flags_of(rules.small(SCRIPT, {"--data-path": "/d", "--load": "/l"})))
    wanted = {
        "--hidden-size": ["64"],
        "--num-attention-heads": ["2"],
        "--num-layers": ["4"],
        "--tensor-model-parallel-size": ["1"],
        "--pipeline-model-parallel-size": ["1"],
        "--data-path": ["/d"],
        "--load": ["/l"],
        "--lora-target-modules": ["linear_qkv", "linear_proj"],
        "--spec": ["mindspeed_llm.tasks.models.spec.qwen3_spec", "layer_spec"],
        "--rotary-base": ["1000000"],
    }
    assert wanted.items() <= small.items()
    assert not {"--bf16", "--noop-layers"} & set(small)


def test_the_injected_fault_is_one() -> None:
    words = rules.small(SCRIPT, {})
    assert rules.small(SCRIPT, {}, wrong=True) == [*words, *rules.INJECTED]


@pytest.mark.parametrize(
    ("right", "difference"),
    [
        ([6.5, 6.4], 0.0),
        ([6.5, 6.40002], pytest.approx(2e-5)),
        ([6.5], math.inf),
        ([6.5, math.nan], math.inf),
    ],
)
def test_losses_are_compared_step_by_step(right: list[float], difference: float) -> None:
    def numbers(losses: list[float]) -> dict[int, dict[str, float]]:
        return {step: {"lm loss": loss} for step, loss in enumerate(losses)}

    assert scripts.apart(numbers([6.5, 6.4]), numbers(right)) == difference
