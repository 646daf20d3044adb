"""Kernels with one error each, by contract: what :mod:`wrong_arguments` does not find by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.apps.parity._case import as_arguments
from accel_bridge.kernels import CONTRACTS

Function = Callable[..., Any]


def by_name(arguments: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments with each option by itself."""
    options = arguments.get("options")
    if options is None:
        return arguments
    own = {field.name: getattr(options, field.name) for field in fields(options)}
    return {**{name: value for name, value in arguments.items() if name != "options"}, **own}


def reference(contract: str, inputs: dict[str, Any]) -> Any:
    """What the reference gives for inputs by name."""
    return CONTRACTS[contract].reference(**as_arguments(contract, inputs))


def with_changes(contract: str, **changes: Callable[[dict[str, Any]], Any]) -> Function:
    """The reference, some arguments computed from all of them."""

    def kernel(**options: Any) -> Any:
        inputs = by_name(options)
        changed = {name: change(inputs) for name, change in changes.items()}
        return reference(contract, {**inputs, **changed})

    return kernel


def with_result(contract: str, change: Callable[[Any, dict[str, Any]], Any]) -> Function:
    """The reference, its result changed."""

    def kernel(**options: Any) -> Any:
        return change(CONTRACTS[contract].reference(**options), options)

    return kernel


def bias_after_dropout(**options: Any) -> Any:
    bias = options.pop("bias")
    output = CONTRACTS["bias_dropout_add"].reference(bias=None, **options)
    return output if bias is None else output + bias


def with_decay(inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Gradients of Adam with L2, which is not AdamW."""
    pairs = zip(inputs["gradients"], inputs["parameters"], strict=True)
    return [gradient + inputs["weight_decay"] * parameter for gradient, parameter in pairs]


def embedding_gradient_of_one_token(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """Of tokens that share a row only one counts."""
    inside = (indices >= 0) & (indices < main_grad.shape[0])
    added = main_grad[indices[inside]] + grad_output[inside].to(main_grad.dtype)
    main_grad[indices[inside]] = added


#: contract -> name -> (kernel, part that must be named, words of a case that must fail).
INJECTED: Final[dict[str, dict[str, tuple[Function, str, str]]]] = {
    "rotary": {
        "rest not passed on": (
            with_result(
                "rotary",
                lambda output, o: torch.cat(
                    (
                        output[..., : o["cos"].shape[-1]],
                        torch.zeros_like(output[..., o["cos"].shape[-1] :]),
                    ),
                    -1,
                ),
            ),
            "output",
            "half s=33 d=64 r=32",
        ),
    },
    "bias_gelu": {
        "by the error function": (
            lambda input, bias: functional.gelu(input + bias),
            "output",
            "rows=64",
        ),
    },
    "bias_dropout_add": {
        "bias after dropout": (bias_after_dropout, "output", "dropout 0.2"),
        "residual rounded": (
            with_changes("bias_dropout_add", residual=lambda o: o["residual"].to(o["input"])),
            "output",
            "float32 residual",
        ),
    },
    "cross_entropy": {
        # As without the maximum taken off, beyond which exp() has no number.
        "large logits cut off": (
            with_changes("cross_entropy", logits=lambda o: o["logits"].clamp(-88, 88)),
            "output",
            "large values",
        ),
        "smoothing over all classes": (
            with_changes(
                "cross_entropy", label_smoothing=lambda o: o["label_smoothing"] * 333 / 334
            ),
            "output",
            "smoothing",
        ),
    },
    "adamw": {
        "eps inside the root": (
            with_changes("adamw", eps=lambda o: o["eps"] ** 0.5),
            "parameters[2]",
            "tiny gradients",
        ),
        "coupled weight decay": (
            with_changes("adamw", gradients=with_decay, weight_decay=lambda o: 0.0),
            "parameters[2]",
            "first step",
        ),
        "gradients as they are": (
            with_changes("adamw", scale=lambda o: None),
            "parameters[2]",
            "scaled gradients",
        ),
        "copies as they are": (with_changes("adamw", copies=lambda o: None), "copies[2]", "copies"),
    },
    "embedding_gradient": {
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
    },
    "state_space_scan": {
        "a border one position late": (
            with_changes(
                "state_space_scan",
                sequence_ids=lambda o: (
                    None
                    if o["sequence_ids"] is None
                    else functional.pad(o["sequence_ids"], (1, 0))[:, :-1]
                ),
            ),
            "output",
            "packed",
        ),
    },
    "grouped_float8_quantize": {
        "transposes not aligned": (
            with_changes("grouped_float8_quantize", align_size=lambda _: 1),
            "transposed",
            "any rows",
        ),
    },
}
