"""Forms of elementwise operators that torch's samples leave out: scalars, in place, strided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import Case, rand

Function = Callable[[torch.Tensor], Any]


def on(function: Function, *shape: int, integers: bool = False, strided: bool = False) -> Case:
    """A case that applies ``function`` and gives its result and what became of its argument."""

    def case(device: str) -> Any:
        x = rand(device, *(shape or (4, 6)))
        if integers:
            x = torch.randint(1, 9, shape or (4, 6)).to(device)
        if strided:
            x = x.t()[::2]
        return function(x), x

    return case


FLOAT: dict[str, Function] = {
    "add_scalar_first": lambda x: torch.add(torch.tensor(2.5), x, alpha=3),
    "add_half": lambda x: x.half() + 1,
    "mul_in_place": lambda x: x.mul_(3),
    "sub_in_place": lambda x: x.sub_(2, alpha=3),
    "rsub": lambda x: 5 - x,
    "rsub_alpha": lambda x: torch.rsub(x, 5, alpha=2),
    "clamp_both": lambda x: x.clamp(-0.5, 0.5),
    "clamp_low": lambda x: x.clamp_min(0.1),
    "clamp_high": lambda x: x.clamp_max(0.1),
    "clamp_high_in_place": lambda x: x.clamp_max_(0.1),
    "clamp_low_in_place": lambda x: x.clamp_min_(0.1),
    "clamp_in_place": lambda x: x.clamp_(-0.1, 0.1),
    "div_floor": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "div_trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "div_floor_in_place": lambda x: x.div_(0.3, rounding_mode="floor"),
    "floor_divide": lambda x: x // 0.3,
    "floor_divide_in_place": lambda x: x.floor_divide_(0.3),
    "fmod": lambda x: x.fmod(0.3),
    "fmod_in_place": lambda x: x.fmod_(0.3),
    "remainder": lambda x: x.remainder(0.3),
    "remainder_in_place": lambda x: x.remainder_(0.3),
    "remainder_scalar_first": lambda x: torch.remainder(2.0, x.abs() + 1),
    "pow": lambda x: x**3,
    "pow_in_place": lambda x: x.pow_(2),
    "pow_scalar_first": lambda x: 2.0**x,
    "eq": lambda x: (x.round() == 1, x.round().eq_(1)),
    "ne": lambda x: (x.round() != 1, x.round().ne_(1)),
    "lt": lambda x: (x < 0.2, x.clone().lt_(0.2)),
    "le": lambda x: (x <= 0.2, x.clone().le_(0.2)),
    "gt": lambda x: (x > 0.2, x.clone().gt_(0.2)),
    "ge": lambda x: (x >= 0.2, x.clone().ge_(0.2)),
    "relu_in_place": lambda x: x.relu_(),
    "lerp": lambda x: torch.lerp(x, x * 2, (x * 0.3).abs()),
    "lerp_number": lambda x: torch.lerp(x, x * 2, 0.3),
    "lerp_in_place": lambda x: x.lerp_(x * 2, (x * 0.3).abs()),
    "to_half_and_back": lambda x: x.to(torch.float16).to(torch.float32),
    "to_integer": lambda x: (x * 10).to(torch.int64),
    "to_bool": lambda x: x.bool(),
    "softmax_in_other_dtype": lambda x: x.half().softmax(-1, dtype=torch.float32),
    "copy_of_other_dtype": lambda x: x.copy_((x * 3).to(torch.bfloat16)),
    "norm": lambda x: (x.norm(), x.norm(dim=1), x.norm(p=1), x.norm(p=float("inf"), dim=0)),
    "norm_keep": lambda x: x.norm(dim=(0, 1), keepdim=True),
    "norm_of_old": lambda x: torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1]),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 2, dim=1),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([2, 0], device=x.device), x[:2] + 1),
    "index_copy_in_place": lambda x: x.index_copy_(
        1, torch.tensor([5, 0], device=x.device), x[:, :2] + 1
    ),
    "index_fill_in_place": lambda x: x.index_fill_(0, torch.tensor([2, 0], device=x.device), 7.0),
    "scatter_value_in_place": lambda x: x.scatter_(1, torch.tensor([[2], [0]]).to(x.device), 7.0),
    "range": lambda x: torch.range(1, 4, 0.5, device=x.device),
    "arange": lambda x: torch.arange(2, 9, 3, device=x.device),
    "one_hot": lambda x: torch.nn.functional.one_hot(torch.arange(4, device=x.device), 6),
    "median_of_all": lambda x: (x.median(), x.median(1)),
}
INTEGERS: dict[str, Function] = {
    "and": lambda x: x & 5,
    "or": lambda x: x | 5,
    "xor": lambda x: x ^ 5,
    "and_in_place": lambda x: x.bitwise_and_(5),
    "xor_in_place": lambda x: x.bitwise_xor_(5),
    "true_divide": lambda x: x / 4,
    "mean": lambda x: x.float().mean(),
    "sum_in_int32": lambda x: x.sum(dtype=torch.int32),
    "repeat_flat": lambda x: torch.repeat_interleave(x[:, 0].float(), x[:, 1]),
    "repeat_dim": lambda x: torch.repeat_interleave(x.float(), x[:, 1], dim=0),
    "repeat_counts": lambda x: torch.repeat_interleave(x[:, 1]),
    "repeat_number": lambda x: torch.repeat_interleave(x, 2),
}
CASES: dict[str, Case] = {
    **{f"elementwise-{name}": on(function) for name, function in FLOAT.items()},
    **{f"elementwise-strided-{name}": on(f, 6, 8, strided=True) for name, f in FLOAT.items()},
    **{f"integers-{name}": on(function, integers=True) for name, function in INTEGERS.items()},
}
