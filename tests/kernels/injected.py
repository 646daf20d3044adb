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


def unbiased(inputs: dict[str, Any]) -> torch.Tensor:
    """The weight with which the norm is that of an unbiased variance."""
    size, centered = inputs["weight"].shape[0], float(inputs["zero_centered_gamma"])
    weight: torch.Tensor = (inputs["weight"] + centered) * (1 - 1 / size) ** 0.5 - centered
    return weight


def bias_after_dropout(**options: Any) -> Any:
    bias = options.pop("bias")
    output = CONTRACTS["bias_dropout_add"].reference(bias=None, **options)
    return output if bias is None else output + bias


def permute_by_token(**options: Any) -> Any:
    """Copies in the order (token, expert)."""
    options = by_name(options)
    copies, weights, rows = reference("token_permute", options)
    return copies.index_select(0, rows[rows >= 0].long()), weights, rows


def last_copy_only(**options: Any) -> Any:
    """Copies overwrite each other instead of being added."""
    options = by_name(options)
    rows = options["rows"]
    last = torch.where(rows == rows.amax(1, keepdim=True), rows, -1)
    return reference("token_unpermute", {**options, "rows": last})


def with_decay(inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Gradients of Adam with L2, which is not AdamW."""
    pairs = zip(inputs["gradients"], inputs["parameters"], strict=True)
    return [gradient + inputs["weight_decay"] * parameter for gradient, parameter in pairs]


def overwritten(contract: str) -> Function:
    """The gradient takes the place of what was summed before."""

    def kernel(**options: Any) -> None:
        options["main_grad"].zero_()
        CONTRACTS[contract].reference(**options)

    return kernel


def embedding_gradient_of_one_token(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """Of tokens that share a row only one counts."""
    inside = (indices >= 0) & (indices < main_grad.shape[0])
    added = main_grad[indices[inside]] + grad_output[inside].to(main_grad.dtype)
    main_grad[indices[inside]] = added


def _interleaved(name: str) -> Any:
    """Heads take turns with the groups, instead of standing together."""

    def change(options: dict[str, Any]) -> torch.Tensor:
        tensor: torch.Tensor = options[name]
        return tensor.repeat(1, 1, 2, 1) if tensor.shape[2] == 2 else tensor

    return change


def _sigmoid_gate(**options: Any) -> Any:
    gate = options.pop("gate")
    output, state = CONTRACTS["state_space_scan"].reference(**options, gate=None)
    return (output if gate is None else output * gate.sigmoid()), state


def _truncated(**options: Any) -> torch.Tensor:
    """Rounds towards zero."""
    numbers: torch.Tensor = CONTRACTS["float8_quantize"].reference(**options)
    exact = options["input"].float() * options["scale"]
    raw = numbers.view(torch.uint8)
    too_large = (numbers.float().abs() > exact.abs()) & exact.isfinite()
    return torch.where(too_large, raw - 1, raw).view(numbers.dtype)


def _unsaturated(**options: Any) -> torch.Tensor:
    """Numbers beyond the largest become infinite or NaN."""
    return (options["input"].float() * options["scale"]).to(options["dtype"])


def _gemm_in_low_precision(**options: Any) -> torch.Tensor:
    """Multiplies with the scale in the input's dtype."""
    scaled = options["input"] * options["scale"].to(options["input"].dtype)
    largest = torch.finfo(options["dtype"]).max
    return scaled.float().clamp(-largest, largest).to(options["dtype"])


def _one_scale(**options: Any) -> Any:
    """The scale of all rows for every expert."""
    if options["scale"] is not None:
        return CONTRACTS["grouped_float8_quantize"].reference(**options)
    whole = {**options, "splits": (sum(options["splits"]),), "amax": None, "transposed": None}
    numbers, scale_inv = CONTRACTS["grouped_float8_quantize"].reference(**whole)
    return numbers, scale_inv.expand(len(options["splits"])).contiguous()


def _turned_as_one(**options: Any) -> Any:
    """One transpose of all rows instead of one for each expert."""
    made = CONTRACTS["grouped_float8_quantize"].reference(**options)
    numbers, transposed = made[0].view(torch.uint8), options["transposed"].view(torch.uint8)
    transposed[: numbers.numel()] = numbers.t().reshape(-1)
    return made


def _idle_forgotten(**options: Any) -> Any:
    """Experts without rows lose their largest magnitude."""
    made = CONTRACTS["grouped_float8_quantize"].reference(**options)
    if options.get("amax") is not None:
        for index, rows in enumerate(options["splits"]):
            options["amax"][index] *= float(rows > 0)
    return made


def _last_rows_left_out(**options: Any) -> None:
    """The last rows of each expert are left out."""
    m = options["sizes"][1]
    gradient = options["grad_output"].clone()
    first = 0
    for rows in options["splits"]:
        if rows:
            gradient.view(torch.uint8)[first * m : (first + rows) * m].view(m, rows)[:, -1] = 0
        first += rows
    CONTRACTS["grouped_scaled_weight_gradient"].reference(**{**options, "grad_output": gradient})


#: contract -> name -> (kernel, part that must be named, words of a case that must fail).
INJECTED: Final[dict[str, dict[str, tuple[Function, str, str]]]] = {
    "rms_norm": {
        "squares in float16": (
            with_changes("rms_norm", input=lambda o: o["input"].half().clamp(-255, 255)),
            "output",
            "large values",
        ),
    },
    "layer_norm": {
        "unbiased variance": (with_changes("layer_norm", weight=unbiased), "output", "rows=64"),
    },
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
    "token_permute": {"order by token": (permute_by_token, "permuted", "t=37")},
    "token_unpermute": {
        "weights rounded": (
            with_changes(
                "token_unpermute",
                weights=lambda o: None if o["weights"] is None else o["weights"].to(o["permuted"]),
            ),
            "grad weights",
            "k=2, weights",
        ),
        "last copy only": (last_copy_only, "output", "k=2"),
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
    },
    "weight_gradient": {
        "overwritten": (overwritten("weight_gradient"), "main_grad", "float32 main_grad"),
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
        "overwritten": (overwritten("embedding_gradient"), "main_grad", "v=100"),
    },
    "state_space_scan": {
        "groups take turns": (
            with_changes(
                "state_space_scan", write=_interleaved("write"), read=_interleaved("read")
            ),
            "output",
            "s=64",
        ),
        "gate without its factor": (_sigmoid_gate, "output", "s=64"),
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
    "gated_delta_rule": {
        # The old value is read from a state that has not decayed yet.
        "decay one position late": (
            with_changes(
                "gated_delta_rule",
                log_decay=lambda o: functional.pad(o["log_decay"], (0, 0, 1, 0))[:, :-1],
            ),
            "output",
            "s=150",
        ),
        "heads take turns": (
            with_changes("gated_delta_rule", query=_interleaved("query"), key=_interleaved("key")),
            "output",
            "s=64",
        ),
        "keys in bfloat16": (
            with_changes(
                "gated_delta_rule", key=lambda o: o["key"].bfloat16().to(o["value"].dtype)
            ),
            "output",
            "keys alike",
        ),
    },
    "float8_quantize": {
        "rounds towards zero": (_truncated, "output", "e4m3"),
        "no saturation": (_unsaturated, "output", "beyond"),
        "GEMM in the input's dtype": (_gemm_in_low_precision, "output", "odd"),
    },
    "float8_current_quantize": {
        "the largest of the first tile": (
            with_changes("float8_current_quantize", input=lambda o: o["input"].clamp(-1, 1)),
            "factor",
            "many tiles",
        ),
    },
    "grouped_float8_quantize": {
        "one scale for all experts": (_one_scale, "scale_inv", "own scales"),
        "one transpose for all experts": (_turned_as_one, "transposed", "transposes"),
        "idle experts forgotten": (_idle_forgotten, "amax", "idle experts"),
        "transposes not aligned": (
            with_changes("grouped_float8_quantize", align_size=lambda _: 1),
            "transposed",
            "any rows",
        ),
    },
    "grouped_float8_block_transpose": {
        "blocks across experts": (
            with_changes("grouped_float8_block_transpose", splits=lambda o: (sum(o["splits"]),)),
            "output",
            "many tiles",
        ),
    },
    "grouped_scaled_weight_gradient": {
        "the last rows left out": (_last_rows_left_out, "main_grad", "many tiles"),
        "overwritten": (
            overwritten("grouped_scaled_weight_gradient"),
            "main_grad",
            "even",
        ),
    },
}
