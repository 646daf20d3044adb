"""Values of Megatron's arguments that no run can follow, refused before anything is built;
and modules that arguments name, such as ``--spec``.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, around
from accel_bridge.patching.host import ArgumentError, Host, adapt_arguments, flag_of
from accel_bridge.patching.host import RefusedArgument as Refused

#: A tensor's size, a seed and a count of samples are at most this.
_MOST: Final = 2**63 - 1
#: Arguments for which infinity means "no limit".
_UNLIMITED: Final = ("clip_grad",)
#: Bytes that Python's objects of one layer or expert take at least.
_OBJECT: Final = 1000


def check_values(args: Any, host: Host) -> None:
    """Refuse numbers that are none, formats without kernels, and models far beyond the memory.

    :raises ArgumentError: for the first that is found.
    """
    for name, value in vars(args).items():
        for number in value if isinstance(value, list | tuple) else (value,):
            _check_number(name, number)
    adapt_arguments(args, _FORMATS, host)
    _check_size(args, host)


def _check_number(name: str, value: Any) -> None:
    wrong = ""
    if isinstance(value, float) and not math.isfinite(value):
        wrong = "" if name in _UNLIMITED and value > 0 else "is no finite number"
    elif isinstance(value, int) and not -_MOST <= value <= _MOST:
        wrong = "has more than 63 bits"
    if wrong:
        flag = flag_of(name)
        given = _written(flag)
        raise ArgumentError(
            f"{flag} {wrong}.",
            evidence=given if given else f"{name} = {value!s:.40}",
            next=f"give {flag} a number that a model can have",
        )


def _written(flag: str) -> str:
    """How the flag stands on the command line; empty where it does not."""
    words = sys.argv[1:]
    for place, word in enumerate(words):
        if word == flag:
            return f"{flag} {' '.join(words[place + 1 : place + 2])[:60]}"
        if word.startswith(f"{flag}="):
            return word[: len(flag) + 61]
    return ""


def _no_float8(args: Any, host: Host) -> bool:
    return (
        bool(args.fp8)
        and host.is_shimmed("transformer_engine_torch")
        and any(host.missing_kernel(name) for name in ("float8_quantize", "scaled_matmul"))
    )


#: Number formats for which this backend has no kernels.
_FORMATS: Final = (
    Refused(
        name="fp8",
        flag="--fp8-format",
        when=_no_float8,
        why="the backend has no kernels for FP8",
        next="train in bf16 (--bf16, without --fp8-format)",
    ),
)


def _check_size(args: Any, host: Host) -> None:
    """Refuse a model whose layers alone are beyond all of this machine's memory.

    It counts what no layout can avoid, so what passes may still be too large. On a device of its
    own, memory that is full is an error; in the host's, the kernel kills whatever it finds.
    """
    layers, hidden = _number(args, "num_layers"), _number(args, "hidden_size")
    experts = max(1, _number(args, "num_experts"))
    if not host.features.tensors_on_host or layers < 1 or hidden < 1:
        return
    width = _number(args, "moe_ffn_hidden_size") or _number(args, "ffn_hidden_size") or 4 * hidden
    # With another --moe-layer-freq not every layer has experts.
    often = experts if getattr(args, "moe_layer_freq", 1) == 1 else 1
    number = 2 if getattr(args, "bf16", False) or getattr(args, "fp16", False) else 4
    whole = layers * often * (2 * hidden * width * number + _OBJECT)
    # Ranks of this machine share its memory; other machines hold their own part.
    nodes = max(1, _number(args, "world_size") // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if whole > memory * nodes:
        flags = f"--num-layers {layers} --hidden-size {hidden}"
        flags += f" --num-experts {experts}" if experts > 1 else ""
        raise ArgumentError(
            "The model is larger than the memory.",
            evidence=(
                f"{flags}: its layers take {whole / 1e9:,.0f} GB at least",
                f"memory: {memory / 1e9:,.0f} GB on each of {nodes} machine(s)",
            ),
            next="make the model smaller, or train on more machines (--nnodes)",
        )


def _number(args: Any, name: str) -> int:
    value = getattr(args, name, None)
    return value if isinstance(value, int) else 0


def _import(_context: PatchContext, call: Callable[[], Any], named: Any) -> Any:
    """The named object, or an error: None would mean the default layers."""
    try:
        found = call()
    except (KeyError, ValueError, TypeError) as error:
        raise refused(named, error) from error
    return found if found is not None else _try_again(named)


def _try_again(named: Any) -> Any:
    # Upstream has logged the ImportError and dropped it.
    try:
        return getattr(importlib.import_module(named[0]), named[1])
    except (ImportError, AttributeError) as error:
        raise refused(named, error) from error


def refused(named: Any, error: Exception) -> ArgumentError:
    """The error for a module and name that lead nowhere.

    :param named: what stands after ``--spec``.
    """
    words = [named] if isinstance(named, str) else list(named or ())
    if len(words) != 2:
        evidence = f"found {len(words)} word{'s' if len(words) != 1 else ''}: {' '.join(words)}"
    elif isinstance(error, ImportError):
        evidence = f"import {words[0]}: {error}"
    else:
        evidence = f"{words[0]} has no {words[1]}"
    return ArgumentError(
        f"The module that is named cannot be had: {' '.join(words)}.",
        evidence=evidence,
        next="give --spec a module on PYTHONPATH and the name of a function or spec in it, as in "
        "--spec megatron.core.models.gpt.gpt_layer_specs get_gpt_layer_local_spec",
    )


PATCHES = (
    megatron_patch(
        id="named-module",
        target="megatron.core.transformer.spec_utils:import_module",
        kind=Kind.WRAP,
        make=around(_import),
        why="a module that cannot be imported becomes None, which means the default layers",
        removed_when="upstream raises the ImportError",
        loses="a misspelt --spec trains another model, silently",
        uses=("module_path",),
    ),
)
