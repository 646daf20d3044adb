"""How MindSpeed-LLM's scripts are made small, and what a comparison says."""

from __future__ import annotations

import mindspeed_rules as rules
import mindspeed_scripts as scripts
import pytest

SCRIPT = """--spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec --num-layers 28
--hidden-size 1024 --num-attention-heads 2 --tensor-model-parallel-size 8 --bf16 --lr 1.25e-6
--data-path your data path --noop-layers 46,47 --pipeline-model-parallel-size 4
--lora-target-modules linear_qkv linear_proj --lora-r 16 --finetune --seed 42 --seed 42
--rotary-base 1000000 --load x --full-attention-interval 4""".split()


def test_sizes_shrink_and_computations_stay() -> None:
    small = dict(rules.flags_of(rules.scale(SCRIPT, {"--data-path": "/d", "--load": "/l"})))
    assert small["--hidden-size"] == ["64"]
    assert small["--num-attention-heads"] == ["2"]
    assert small["--num-layers"] == ["4"]
    assert small["--tensor-model-parallel-size"] == ["1"]
    assert small["--pipeline-model-parallel-size"] == ["1"]
    assert small["--data-path"] == ["/d"]
    assert small["--load"] == ["/l"]
    assert small["--lora-target-modules"] == ["linear_qkv", "linear_proj"]
    assert small["--spec"] == ["mindspeed_llm.tasks.models.spec.qwen3_spec", "layer_spec"]
    assert small["--rotary-base"] == ["1000000"]
    assert not {"--bf16", "--noop-layers"} & set(small)


def test_the_checkpoint_has_the_adapters_and_no_step() -> None:
    start = dict(rules.flags_of(rules.starting(rules.scale(SCRIPT, {}), "/start")))
    assert start["--lr"] == ["0"]
    assert start["--train-iters"] == ["1"]
    assert start["--save"] == ["/start"]
    assert start["--lora-target-modules"] == ["linear_qkv", "linear_proj"]
    assert not {"--load", "--finetune"} & set(start)


def test_the_injected_fault_is_one() -> None:
    words = rules.scale(SCRIPT, {})
    asked = {"paths": {}, "ranks": 1, "start": "", "injected": True}
    assert rules.small(SCRIPT, asked) != words
    assert rules.small(SCRIPT, asked | {"injected": False}) == words


@pytest.mark.parametrize(
    ("right", "difference"),
    [
        ([(6.5, 1.0), (6.4, 1.0)], 0.0),
        ([(6.5, 1.0), (6.40002, 1.0)], pytest.approx(2e-5)),
        ([(6.5, 1.0)], float("inf")),
        ([(6.5, 1.0), (float("nan"), 1.0)], float("inf")),
    ],
)
def test_losses_are_compared_step_by_step(
    right: list[tuple[float, float]], difference: float
) -> None:
    assert scripts.worst([(6.5, 1.0), (6.4, 1.0)], right, 0) == difference
