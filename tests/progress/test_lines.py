"""Log lines of Megatron's versions and relatives, and what stands around them."""

from __future__ import annotations

import math

import pytest

from accel_bridge.process.progress.lines import LogReader, facts_line

OLD = (
    " [2025-06-01 10:00:00] iteration       12/     100 | consumed samples:          192 | "
    "elapsed time per iteration (ms): 250.0 | throughput per GPU (TFLOP/s/GPU): 41.5 | "
    "learning rate: 1.500000E-04 | global batch size:    16 | lm loss: 8.349537E+00 | "
    "loss scale: 1.0 | grad norm: 1.537 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)
NEW = OLD.replace("10:00:00]", "10:00:00.123456]")
MINDSPEED = OLD.replace(
    "throughput per GPU (TFLOP/s/GPU): 41.5",
    "theoretical throughput per NPU (TFLOP/s/NPU): 50.0 | "
    "actual throughput per NPU (TFLOP/s/NPU): 41.5 | "
    "actual throughput per NPU with recompute (TFLOP/s/NPU): 55.0",
)
FSDP2 = (
    "INFO [2026-06-22 19:25:37] >>  iteration       12/     100 | consumed samples:          8 | "
    "consumed tokens:        564 | elapsed time per iteration (ms): 250.00 | "
    "learning rate: 1.666667E-07 | global batch size:    16 | lm loss: 8.349537E+00 | "
    "grad norm: 70.959 | max_memory_allocated(GB): 19.07 | max_memory_reserved(GB): 20.90 |"
)
SWIFT = (
    "{'loss': 8.349537, 'grad_norm': 1.5, 'learning_rate': 9.9e-05, 'iteration': '12/100', "
    "'elapsed_time': '19s', 'remaining_time': '5m 2s', 'memory(GiB)': 20.9, "
    "'train_speed(s/it)': 0.25}"
)
MOE = OLD.replace("lm loss:", "load_balancing_loss: 1.01 | lm loss:")
BERT = OLD.replace("lm loss: 8.349537E+00", "lm loss: 8.349537E+00 | sop loss: 6.900000E-01")


@pytest.mark.parametrize(
    "line",
    [
        *(OLD, NEW, MINDSPEED, FSDP2, SWIFT, MOE, BERT),
        f"[default7]:{NEW}",
        f"[rank7]:{OLD}",
        f"7: {OLD}",
        f"  5%|##   | 12/100 [00:03<00:20,  4.1it/s]\r{NEW}",
        f"{NEW}  5%|##   | 12/100 [00:03<00:20,  4.1it/s]",
        SWIFT.replace("'", '"'),
        SWIFT.replace("'iteration'", "'global_step/max_steps'"),
        OLD.replace("lm loss", "loss"),
    ],
)
def test_every_form_says_the_same(line: str) -> None:
    found = LogReader().read(line)
    assert (found.number, found.of) == (12, 100)
    assert found.loss == pytest.approx(8.349537)
    assert found.seconds == pytest.approx(0.25)


def test_throughput_and_memory_by_their_names() -> None:
    for line in (OLD, MINDSPEED):
        found = LogReader().read(line)
        assert found.tflops == 41.5
    for line in (FSDP2, SWIFT):
        found = LogReader().read(line)
        assert found.memory == 20.9


@pytest.mark.parametrize(
    "line",
    [
        "",
        "building GPT model ...",
        "iteration 5",
        "iteration 5/10 of the outer loop",
        "iteration 5/10 |",
        "  train_iters ..................................... 100",
        "validation loss at iteration 12 | lm loss value: 5.0E+00 | lm loss PPL: 1.5E+02 |",
        "{'iteration': 'x/100', 'loss': 1}",
        "iteration " + "9" * 400 + "/1 | lm loss: 1 |",
    ],
)
def test_other_lines_are_no_iterations(line: str) -> None:
    assert LogReader().read(line) is None


def test_a_loss_that_is_not_there_is_no_number() -> None:
    """Megatron leaves out what is NaN, and divides an empty sum when it skipped all."""
    reader = LogReader()
    left_out = reader.read(OLD.replace(" lm loss: 8.349537E+00 |", ""))
    skipped = reader.read(
        OLD.replace("12/", "13/")
        .replace("8.349537E+00", "0.000000E+00")
        .replace("skipped iterations:   0", "skipped iterations:   1")
    )
    assert math.isnan(left_out.loss)
    assert math.isnan(skipped.loss)


def test_tokens_a_second_need_the_sequence_length_of_the_arguments() -> None:
    reader = LogReader()
    first = reader.read(OLD)
    assert first is not None
    assert reader.tokens_per_second(first) is None
    assert reader.read("[default0]:  seq_length ...................................... 128") is None
    assert reader.tokens_per_second(first) == 16 * 128 / 0.25


def test_our_own_line_adds_to_the_iteration_before() -> None:
    reader = LogReader()
    reader.read(OLD.replace(" throughput per GPU (TFLOP/s/GPU): 41.5 |", ""))
    found = reader.read(facts_line(12, 100, 10.0, 60.5, 79.1))
    assert (found.tflops, found.memory) == (40.0, 60.5)
    assert found.loss == pytest.approx(8.349537)
    other = reader.read(facts_line(13, 100, 10.0, 60.5, 79.1))
    assert math.isnan(other.loss)
