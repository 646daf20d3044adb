"""Kernels that write into their arguments, with one error each: AdamW, gradients in place."""

from __future__ import annotations

from typing import Any, Final

import torch

from accel_bridge.kernels import CONTRACTS, AdamWOptions

from .injected import Function, by_name, reference, with_changes


def adamw_eps_inside(
    parameters: Any,
    gradients: Any,
    first_moments: Any,
    second_moments: Any,
    options: AdamWOptions,
) -> None:
    first, second = options.betas
    groups = zip(parameters, gradients, first_moments, second_moments, strict=True)
    for parameter, gradient, moment, square in groups:
        parameter.mul_(1 - options.lr * options.weight_decay)
        moment.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second**options.step) + options.eps).sqrt()
        parameter.sub_(options.lr / (1 - first**options.step) * moment / root)


def adamw_coupled(**options: Any) -> None:
    """Weight decay as part of the gradient: Adam with L2, not AdamW."""
    options = by_name(options)
    decay = options["weight_decay"]
    gradients = [
        gradient + decay * parameter
        for gradient, parameter in zip(options["gradients"], options["parameters"], strict=True)
    ]
    reference("adamw", {**options, "gradients": gradients, "weight_decay": 0.0})


def weight_gradient_rounded(
    input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    x, gradient = input.flatten(0, -2), grad_output.flatten(0, -2)
    main_grad += gradient.bfloat16().t() @ x.bfloat16()


def weight_gradient_overwritten(
    input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    main_grad.zero_()
    CONTRACTS["weight_gradient"].reference(input, grad_output, main_grad)


def embedding_gradient_rounded(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    rounded = main_grad.bfloat16()
    CONTRACTS["embedding_gradient"].reference(indices, grad_output, rounded)
    main_grad.copy_(rounded)


def embedding_gradient_of_one_token(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """Of tokens that share a row only one counts."""
    inside = (indices >= 0) & (indices < main_grad.shape[0])
    added = main_grad[indices[inside]] + grad_output[inside].to(main_grad.dtype)
    main_grad[indices[inside]] = added


#: As in injected.
INJECTED: Final[dict[str, dict[str, tuple[Function, str, str]]]] = {
    "adamw": {
        "eps inside the root": (adamw_eps_inside, "parameters[2]", "tiny gradients"),
        "step counted from 0": (
            with_changes("adamw", step=lambda o: o["step"] + 1),
            "parameters[2]",
            "first step",
        ),
        "coupled weight decay": (adamw_coupled, "parameters[2]", "first step"),
        "betas exchanged": (
            with_changes("adamw", betas=lambda o: o["betas"][::-1]),
            "first_moments[2]",
            "step 10",
        ),
    },
    "weight_gradient": {
        "GEMM in bfloat16": (weight_gradient_rounded, "main_grad", "float32 main_grad"),
        "overwritten": (weight_gradient_overwritten, "main_grad", "float32 main_grad"),
    },
    "grouped_weight_gradient": {
        "off by the last bit of bfloat16": (
            with_changes(
                "grouped_weight_gradient",
                grad_output=lambda o: o["grad_output"].float() * (1 + 2.0**-7),
            ),
            "main_grad",
            "even",
        ),
        "rows of the expert before": (
            with_changes(
                "grouped_weight_gradient", splits=lambda o: (*o["splits"][1:], o["splits"][0])
            ),
            "main_grad",
            "odd sizes",
        ),
        "sums in the experts' order": (
            with_changes("grouped_weight_gradient", places=lambda o: sorted(o["places"])),
            "main_grad",
            "idle experts",
        ),
    },
    "embedding_gradient": {
        "sums in bfloat16": (embedding_gradient_rounded, "main_grad", "v=13"),
        "one of the tokens that share a row": (
            embedding_gradient_of_one_token,
            "main_grad",
            "v=13",
        ),
        "other ranks' rows added to the last": (
            with_changes(
                "embedding_gradient",
                indices=lambda o: o["indices"].clamp(max=o["main_grad"].shape[0] - 1),
            ),
            "main_grad",
            "v=13",
        ),
        "overwritten": (
            lambda indices, grad_output, main_grad: CONTRACTS["embedding_gradient"].reference(
                indices, grad_output, main_grad.zero_()
            ),
            "main_grad",
            "v=100",
        ),
    },
}
