"""The plugin with Megatron's patches and argument rules.

Loading it imports no torch: the patches' modules are imported after a backend has been selected.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.plugin import hookimpl

if TYPE_CHECKING:
    from accel_bridge.plugin import (
        ArgumentRule,
        Backend,
        Check,
        ParsedArguments,
        Patch,
        RefusedArgument,
        Run,
        Variable,
    )

#: Modules with ``PATCHES``, in the order in which a run meets them.
_MODULES: Final = (
    *("arguments", "tokenizers", "dataset_helpers", "dist_checkpointing", "jit", "rng", "signals"),
    *("norm", "placement", "attention", "packed_sequences", "activation", "tensor_parallel"),
    *(
        "comm_gemm_overlap",
        "parameter_groups",
        "latent_gradients",
        "delta_gradients",
        "embedding",
        "cross_entropy",
    ),
    *("loss_gradient", "placeholders"),
    *(
        "linear_cross_entropy",
        "recompute_outputs",
        "optimizer",
        "recording",
        "checkpoints",
        "checksums",
    ),
    "save_lock",
    "serving",
    *("training_log", "progress", "host_limit", "memory_limit", "loss_checks", "one_rank"),
    *(
        "argument_values",
        "graphs",
        "inference",
        "inference_scan",
        "help_text",
        "hints",
        "numpy_names",
    ),
    *("fsdp2_resume", "conversion_tool", "advice", "operator_backends", "transformer_engine"),
)


@hookimpl
def accel_bridge_variables() -> list[Variable[Any]]:
    """Whether checkpoints get checksums, and when logits are left out."""
    from accel_bridge.patches._variables import CHECKSUMS, FUSED_OUTPUT

    return [CHECKSUMS, FUSED_OUTPUT]


@hookimpl
def accel_bridge_versions() -> list[tuple[str, str | None]]:
    """The Megatron that an import would find, installed or checked out."""
    from accel_bridge.patches._factory import DISTRIBUTION
    from accel_bridge.patches._installed import megatron_version

    return [(DISTRIBUTION, megatron_version())]


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """Every patch for Megatron; each decides for itself whether this backend needs it."""
    from accel_bridge.patches._installed import tell_of_several

    tell_of_several()
    if (session := getattr(backend, "rehearsal", None)) is not None:
        from accel_bridge.patches import rehearsal

        rehearsal.attach(session)
    modules = [import_module(f"accel_bridge.patches.{name}") for name in _MODULES]
    return [patch for module in modules for patch in module.PATCHES]


@hookimpl
def accel_bridge_argument_rules(backend: Backend) -> list[ArgumentRule | RefusedArgument]:
    """How Megatron's arguments change without the libraries they name."""
    from accel_bridge.patches import arguments

    return list(arguments.ALL_RULES)


@hookimpl
def accel_bridge_checks() -> list[Check]:
    """What stops Megatron: its installation, and a training's arguments."""
    from accel_bridge.patches.doctor import installation, training

    return [*installation.CHECKS, *training.CHECKS]


@hookimpl
def accel_bridge_parsed_arguments(
    argv: list[str], run: Run, seconds: float
) -> list[ParsedArguments]:
    """The arguments, as the installed Megatron reads them."""
    from accel_bridge.patches.doctor.parsing import read

    return read(argv, run, seconds)
