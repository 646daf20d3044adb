"""Command lines written for Ascend, on real Megatron without an NPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end import quick_start
from end_to_end.adaptor_2023 import (
    COMMANDS,
    DTYPES,
    MODEL,
    TOLERANCE,
    Command,
    Reference,
    start_from,
)
from end_to_end.launcher import train, worst_difference


# Every dtype, order and band.
@pytest.mark.parametrize("command", [COMMANDS[i] for i in (3, 4)])
def test_commands_of_the_2023_adaptor(
    command: Command, adaptor_checkpoint: Path, adaptor_reference: Reference
) -> None:
    load = start_from(adaptor_checkpoint)
    run = train(*command.arguments, *load, iterations=2).succeeded()
    assert f"attention is called in {command.order}" in run.output
    expected = adaptor_reference(command.dtype, command.window)
    assert worst_difference(expected, run) <= TOLERANCE


@pytest.mark.conformance
@pytest.mark.parametrize(("pre", "window"), [(17, ("--window-size", "16,0")), (16, ())])
def test_a_wrong_band_is_seen(
    pre: int, window: tuple[str, ...], adaptor_checkpoint: Path, adaptor_reference: Reference
) -> None:
    arguments = [*MODEL, *start_from(adaptor_checkpoint), *DTYPES["bf16"]]
    run = train(*arguments, f"--pre={pre}", "--next=0", iterations=2).succeeded()
    assert worst_difference(adaptor_reference("bf16", window), run) > TOLERANCE


def test_the_literal_band_restricts_nothing_in_a_short_sequence(
    adaptor_checkpoint: Path, adaptor_reference: Reference
) -> None:
    flags = ["--pre=2048", "--next=0", "--shape_order=SBH", *start_from(adaptor_checkpoint)]
    run = train(*MODEL, *DTYPES["bf16"], *flags, iterations=2).succeeded()
    assert "restricts nothing at sequence length 64" in run.output
    assert worst_difference(adaptor_reference("bf16", ()), run) <= TOLERANCE


def test_the_quick_start_of_mindspeed() -> None:
    """The same arguments as on emulated NPUs, where the other layout is tried too."""
    run = train(*quick_start.arguments("TP2 PP1"), processes=2, iterations=3).succeeded()
    quick_start.check(run)


def test_a_script_with_mindspeeds_own_flags() -> None:
    """What tests_extend's llama2 and gpt scripts of MindSpeed carry besides Megatron's flags."""
    model = "--swiglu --normalization RMSNorm --position-embedding-type rope"
    flags = (
        "--use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --use-flash-attn "
        "--context-parallel-algo megatron_cp_algo --use-cp-send-recv-overlap --reuse-fp32-param "
        "--use-ascend-mc2 --recompute-activation-function --swap-attention "
        "--pre-tockens 65536 --next-tockens 0 --shape-order SBH --no-gradient-accumulation-fusion"
    )
    run = train(*quick_start.ARGUMENTS, *model.split(), *flags.split(), iterations=2).succeeded()
    assert run.output.count("flags of MindSpeed that tune speed, memory or logging") == 1
    assert len(run.losses) == 2
