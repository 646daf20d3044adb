"""The plugin that brings Megatron's patches and argument rules.

Loading it imports no torch: the patches' modules are imported when a backend has been selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bridge._hookspecs import hookimpl

if TYPE_CHECKING:
    from accel_bridge._arguments import ArgumentRule, RefusedArgument
    from accel_bridge._backend import Backend
    from accel_bridge._takeover import Takeover
    from accel_bridge.patching import Patch


@hookimpl
def accel_bridge_versions() -> list[tuple[str, str | None]]:
    """The Megatron that an import would find, installed or checked out."""
    from accel_bridge.patches import _upstream

    return [(_upstream.DISTRIBUTION, _upstream.megatron_version())]


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """Every patch for Megatron; each decides by itself whether this backend needs it."""
    from accel_bridge.patches import (
        activation,
        advice,
        arguments,
        attention,
        cross_entropy,
        dataset_helpers,
        dist_checkpointing,
        embedding,
        gradient_norm,
        jit,
        linear,
        multi_tensor,
        norm,
        optimizer,
        packed_documents,
        placement,
        recording,
        rng,
        rotary,
        script_flags,
        signals,
        tensor_parallel,
        tokenizers,
        transformer_engine,
    )

    modules = (
        arguments,
        script_flags,
        tokenizers,
        dataset_helpers,
        dist_checkpointing,
        jit,
        rng,
        signals,
        norm,
        placement,
        attention,
        packed_documents,
        rotary,
        activation,
        tensor_parallel,
        linear,
        embedding,
        cross_entropy,
        optimizer,
        multi_tensor,
        gradient_norm,
        transformer_engine,
        recording,
        advice,
    )
    return [patch for module in modules for patch in module.PATCHES]


@hookimpl
def accel_bridge_argument_rules(backend: Backend) -> list[ArgumentRule | RefusedArgument]:
    """What Megatron's arguments must become without the libraries they name."""
    from accel_bridge.patches import arguments

    return list(arguments.ALL_RULES)


@hookimpl
def accel_bridge_takeovers(backend: Backend) -> list[Takeover]:
    """MindSpeed, on the devices that it is for."""
    from accel_bridge.patches import mindspeed

    return mindspeed.takeovers(backend)
