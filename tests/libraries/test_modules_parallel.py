"""Modules that are spread over two processes, against the same modules in one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from kernels.support import on_two_ranks

from accel_bridge.apps.testing import FinishedRuns

_RANKS: Final = 2
#: Largest difference of float32 results, relative to the largest entry.
TOLERANCE: Final = 1e-5
#: case -> class, its arguments, whether the sequence is spread.
CASES: Final[dict[str, tuple[str, dict[str, Any], bool]]] = {
    "column": ("Linear", {"parallel_mode": "column"}, False),
    "column, sequence": ("Linear", {"parallel_mode": "column"}, True),
    "row": ("Linear", {"parallel_mode": "row"}, False),
    "row, sequence": ("Linear", {"parallel_mode": "row"}, True),
    "norm": ("LayerNormLinear", {"parallel_mode": "column"}, False),
    "norm, sequence": ("LayerNormLinear", {"parallel_mode": "column"}, True),
    "norm, gathered output": (
        "LayerNormLinear",
        {
            "parallel_mode": "column",
            "return_layernorm_output": True,
            "return_layernorm_output_gathered": True,
        },
        True,
    ),
    "mlp": ("LayerNormMLP", {"set_parallel_mode": True}, False),
    "mlp, sequence": ("LayerNormMLP", {"set_parallel_mode": True}, True),
    "mlp, computed again": ("LayerNormMLP", {"set_parallel_mode": True, "checkpoint": True}, True),
}
_SIZE: Final = 32
_ROWS: Final = 32


def _shard(whole: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    return whole if dim is None else whole.chunk(_RANKS, dim)[rank].contiguous()


def _dim(name: str, parameter: Any) -> int | None:
    """Along which a parameter is spread."""
    return parameter.partition_dim if hasattr(parameter, "partition_dim") else None


def _run(
    te: Any, module: Any, x: torch.Tensor, weights: torch.Tensor, recipe: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and gradient of x; the parameters have theirs."""
    x = x.clone().requires_grad_()
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    (out * weights).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


def _judge(te: Any, case: str, rank: int, recipe: Any = None) -> float:
    """Largest difference between this rank's part and that of one process."""
    kind, options, spreads = CASES[case]
    torch.manual_seed(1)
    single = getattr(te, kind)(
        _SIZE, _SIZE, **{k: v for k, v in options.items() if not k.endswith("mode")}
    )
    with torch.no_grad():
        for parameter in single.parameters():
            parameter.uniform_(-1, 1)
    spread = getattr(te, kind)(
        _SIZE, _SIZE, tp_group=dist.group.WORLD, sequence_parallel=spreads, **options
    )
    with torch.no_grad():
        for name, parameter in spread.named_parameters():
            parameter.copy_(_shard(single.get_parameter(name), _dim(name, parameter), rank))
    x, weights = torch.randn(_ROWS, 2, _SIZE), torch.randn(_ROWS, 2, _SIZE)
    mode = options.get("parallel_mode", "mlp")
    splits_input = {"column": 0 if spreads else None, "row": -1, "mlp": 0 if spreads else None}
    splits_output = {"column": -1, "row": 0 if spreads else None, "mlp": 0 if spreads else None}
    wanted_out, wanted_grad = _run(te, single, x, weights, recipe)
    out, grad = _run(
        te,
        spread,
        _shard(x, splits_input[mode], rank),
        _shard(weights, splits_output[mode], rank),
        recipe,
    )
    pairs = [
        (out, _shard(wanted_out, splits_output[mode], rank)),
        (grad, _shard(wanted_grad, splits_input[mode], rank)),
    ]
    for name, parameter in spread.named_parameters():
        mine = parameter.grad
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(mine)  # Megatron's, after the backward pass
        wanted = single.get_parameter(name).grad
        pairs.append((mine, _shard(wanted, _dim(name, parameter), rank)))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def _injected(name: str) -> Callable[..., Any]:
    """A collective with an error."""

    def alone(inp: torch.Tensor, group: Any, async_op: bool = False, **options: Any) -> Any:
        parts = inp.chunk(_RANKS)
        return (parts[0] if name.startswith("reduce") else torch.cat([inp] * _RANKS)), None

    def unchanged(inp: torch.Tensor, *args: Any, **options: Any) -> Any:
        return inp, None

    return unchanged if name == "allreduce" else alone


def _judge_all(group: dist.ProcessGroup) -> dict[str, float]:
    """This rank's differences, by case."""
    import accel_bridge

    accel_bridge.activate("cpu", after_import=True)
    torch.set_default_device("cuda")
    te = importlib.import_module("transformer_engine.pytorch")
    function = importlib.import_module("transformer_engine.pytorch.module.linear")
    recipes = importlib.import_module("transformer_engine.common.recipe")
    rank = dist.get_rank()
    found: dict[str, float] = {case: _judge(te, case, rank) for case in CASES}
    for name, case in (
        ("allreduce", "row"),
        ("reduce_scatter_along_first_dim", "row, sequence"),
        ("gather_along_first_dim", "column, sequence"),
    ):
        original = getattr(function, name)
        setattr(function, name, _injected(name))
        found[f"injected: {name}"] = _judge(te, case, rank)
        setattr(function, name, original)
    for case in ("column, sequence", "row, sequence", "mlp, sequence"):
        for recipe in (recipes.Float8CurrentScaling(), recipes.DelayedScaling()):
            # The ranks agree on scales: the same FP8 numbers as in one process, up to rounding of
            # sums.
            key = f"{type(recipe).__name__}: {case}"
            found[key] = _judge(te, case, rank, recipe)
    return found


@pytest.fixture(scope="module")
def found(finished_runs: FinishedRuns) -> dict[str, float]:
    """The larger of both ranks' differences, by case."""

    def make(directory: Path) -> None:
        on_two_ranks(_judge_all, directory)

    directory = finished_runs.directory("ranks of Transformer Engine's modules", make)
    each = [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(_RANKS)]
    return {case: max(one[case] for one in each) for case in each[0]}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one(found: dict[str, float], case: str) -> None:
    assert found[case] < TOLERANCE


def test_missing_communication_is_found(found: dict[str, float]) -> None:
    injected = {name: value for name, value in found.items() if name.startswith("injected")}
    assert len(injected) == 3
    assert min(injected.values()) > 1000 * TOLERANCE, injected


def test_fp8_ranks_agree_on_scales(found: dict[str, float]) -> None:
    fp8 = {name: value for name, value in found.items() if "Scaling" in name}
    assert len(fp8) == 6
    # Current scaling has one scale for each rank's part of weights and of some gradients.
    assert max(fp8.values()) < 0.15, fp8
    assert max(value for name, value in fp8.items() if "Delayed" in name) < 1e-3, fp8
