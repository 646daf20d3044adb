"""The table of docs/flags.md: what each flag means on GPUs, NPUs and CPUs.

Megatron's flags are put to the rules themselves, on a host of each backend with the recommended
install: Transformer Engine's Python, and a shim for every other library that has one.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from accel_bridge.backends.ascend._backend import AscendBackend
from accel_bridge.backends.cpu._backend import CpuBackend
from accel_bridge.backends.cuda._backend import CudaBackend
from accel_bridge.libraries._library import LIBRARIES
from accel_bridge.patches.arguments import ALL_RULES
from accel_bridge.patches.mindspeed.mapped_flags import Effect, Flag
from accel_bridge.patches.mindspeed.script_flags import FLAGS
from accel_bridge.patching.host import (
    ArgumentRule,
    Host,
    RefusedArgument,
    flag_of,
    is_given,
    know_flags,
)

HEAD: Final = ("flags", "GPU/NPU/CPU", "what it does, or why")

#: Beside the flag itself, what must be asked for so that its rule has something to do.
_ASKED: Final[dict[str, dict[str, Any]]] = {
    "apply_rope_fusion": {"multi_latent_attention": True},
    "moe_permute_fusion": {"num_experts": 8},
    "create_attention_mask_in_dataloader": {"mock_data": True},
    "moe_enable_deepep": {"moe_token_dispatcher_type": "flex"},
    "moe_flex_dispatcher_backend": {"moe_token_dispatcher_type": "flex"},
    "moe_expert_rank_capacity_factor": {"moe_token_dispatcher_type": "flex"},
    "moe_dispatch_fwd_dtype": {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "ncclep",
    },
    "moe_combine_bwd_dtype": {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "ncclep",
    },
    "async_save": {"ckpt_format": "fsdp_dtensor"},
    "async_strategy": {"async_save": True},
    "eval_interval": {"train_iters": 1},
    "inference_moe_token_dispatcher_type": {
        "transformer_impl": "inference_optimized",
        "expert_model_parallel_size": 2,
    },
    "moe_shared_expert_overlap": {
        "inference_moe_token_dispatcher_type": "nvls",
        "transformer_impl": "inference_optimized",
        "expert_model_parallel_size": 2,
        "moe_latent_size": 64,
    },
    "persist_layer_norm": {"transformer_impl": "local"},
    "context_parallel_size": {"transformer_impl": "local"},
    "multi_latent_attention": {"transformer_impl": "local"},
}
#: What a flag with values asks for; the others are set.
_VALUES: Final = {
    "async_strategy": "nvrx",
    "moe_token_dispatcher_type": "flex",
    "moe_flex_dispatcher_backend": "hybridep",
    "cuda_graph_impl": "full",
    "inference_cuda_graph_scope": "full",
    "inference_moe_token_dispatcher_type": "nvls",
    "eval_interval": None,
    "context_parallel_size": 2,
    "moe_dispatch_fwd_dtype": "mxfp8",
    "moe_combine_bwd_dtype": "mxfp8",
    "transformer_impl": "transformer_engine",
}


#: One rule looks for certain functions in Megatron, which every version has.
_MEGATRON: Final = dict.fromkeys(
    itertools.accumulate(("megatron", "core", "transformer", "moe"), "{}.{}".format),
    mock.MagicMock(),
)


#: Attention in Ascend's words (patches/mindspeed/attention_flags.py).
_ATTENTION: Final = (
    (
        "`--pre-tockens N`, `--next-tockens M` (2023: `--pre`, `--next`)",
        "a band: `window_size` (N, M), ends inclusive, where N is below the sequence length - 1",
    ),
    (
        "`--shape-order` (2023: `--shape_order`)",
        "SBH, BSH, BSND or BNSD: the layout in which the attention kernel is called",
    ),
    (
        "`--sparse-mode`",
        "0 and 4: the band applies; 1, 2, 3: causal without a band; 5 to 8 are refused",
    ),
    ("`--use-flash-attn`", "Megatron's own"),
)


@dataclass
class _Installed(Host):
    """A host on which exactly ``libraries`` can be imported."""

    libraries: frozenset[str] = frozenset()

    def library(self, name: str) -> bool:
        return name in self.libraries


def _hosts(libraries: frozenset[str]) -> list[_Installed]:
    return [
        _Installed(
            backend=backend,
            adapt=lambda args: args,
            say=lambda line: None,
            announce=lambda: None,
            is_shimmed=libraries.__contains__,
            libraries=libraries,
        )
        for backend in (CudaBackend(), AscendBackend(), CpuBackend())
    ]


_RECOMMENDED: Final = _hosts(
    frozenset({"transformer_engine", "transformer_engine_torch", *LIBRARIES})
)
_BARE: Final = _hosts(frozenset())


def _parser() -> argparse.ArgumentParser:
    """That of the installed Megatron, which knows how its arguments are written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.training.arguments import add_megatron_arguments

        parser: argparse.ArgumentParser = add_megatron_arguments(argparse.ArgumentParser())
        return parser


def _answer(rule: ArgumentRule | RefusedArgument, host: Host) -> str | None:
    """What becomes of the rule's flag on the host, or None where it stays as it is."""
    asked = _VALUES.get(rule.name, True)
    if isinstance(rule, ArgumentRule) and rule.value is True:
        asked = False
    args = SimpleNamespace(**{**_ASKED.get(rule.name, {}), rule.name: asked})
    with mock.patch.dict(sys.modules, _MEGATRON):
        if not rule.when(args, host):
            return None
    if isinstance(rule, RefusedArgument):
        return "refused"
    if isinstance(rule.value, bool):
        return "on" if is_given(rule.name, rule.value) else "off"
    return f"`{rule.value}`"


def _of_megatron() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(flag, the other cells) of each of Megatron's flags that has rules."""
    for name in dict.fromkeys(rule.name for rule in ALL_RULES):
        rules = [rule for rule in ALL_RULES if rule.name == name]
        flag = next((r.flag for r in rules if isinstance(r, RefusedArgument)), flag_of(name))
        cells, whys = ["as is"] * 3, []
        for rule in rules:
            answers = [_answer(rule, host) for host in _RECOMMENDED]
            why = rule.why
            if isinstance(rule, RefusedArgument) and rule.next != f"remove {rule.flag}":
                why += f"; {rule.next}"
            if not any(answers):
                bare = {_answer(rule, host) for host in _BARE} - {None}
                assert bare, f"nothing makes the rule of {name} apply: complete _ASKED or _VALUES"
                outcome = " or ".join(sorted(str(one) for one in bare))
                why = f"{outcome} only without the library: {why}"
            cells = [answer or cell for answer, cell in zip(answers, cells, strict=True)]
            whys.append(why)
        yield f"`{flag}`", (*cells, ". ".join(whys))


def _of_mindspeed(flag: Flag) -> tuple[str, ...]:
    """The other cells of a flag of MindSpeed; it is the same on all hardware."""
    if flag.effect is Effect.IGNORED:
        return ("ignored", "ignored", "ignored", flag.means)
    if flag.effect is Effect.REFUSED:
        instead = "" if flag.next == "remove it" else f"; {flag.next}"
        return ("refused", "refused", "refused", flag.means + instead)
    means = f"{flag.means}: `{flag.to}`" if flag.to else flag.means
    return ("mapped", "mapped", "mapped", means)


def rows() -> list[tuple[str, ...]]:
    """The table's rows; flags that share every other cell stand in one."""
    know_flags(_parser())
    found: dict[tuple[str, ...], list[str]] = {}
    for flag, cells in _of_megatron():
        found.setdefault(cells, []).append(flag)
    for flag, what in _ATTENTION:
        found[("mapped", "mapped", "mapped", what)] = [flag]
    for effect in (Effect.MAPPED, Effect.REFUSED, Effect.IGNORED):
        for one in FLAGS.values():
            if one.effect is effect:
                found.setdefault(_of_mindspeed(one), []).append(f"`{one.name}`")
    made = []
    for (*answers, why), flags in found.items():
        same = len(set(answers)) == 1
        made.append((", ".join(flags), answers[0] if same else "/".join(answers), why))
    return made
