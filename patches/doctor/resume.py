"""What a checkpoint in --load says against the training that would load it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.patches.checkpoints import checkpoint_of
from accel_bridge.patching.host import flag_of

#: What decides which weights a model has, and their shapes; some only where another argument is
#: given, and else have defaults that differ between versions. A vocabulary may be padded otherwise.
_MODEL: Final = {
    "": "num_layers hidden_size ffn_hidden_size num_attention_heads kv_channels num_experts "
    "normalization swiglu add_bias_linear qk_layernorm add_position_embedding mtp_num_layers "
    "untie_embeddings_and_output_weights multi_latent_attention hybrid_layer_pattern "
    "experimental_attention_variant group_query_attention",
    "group_query_attention": "num_query_groups",
    "num_experts": "moe_ffn_hidden_size moe_shared_expert_intermediate_size",
    "multi_latent_attention": "q_lora_rank kv_lora_rank qk_head_dim v_head_dim",
}
#: What decides how an optimizer keeps its state.
_OPTIMIZER: Final = ("optimizer", "use_distributed_optimizer")
_LAYOUT: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
)
#: Switches with which another model's checkpoint is meant to be loaded.
_CONVERTS: Final = ("use_checkpoint_args", "moe_use_upcycling")

#: What, evidence, next.
Difference = tuple[str, tuple[str, ...], str]


def differences(args: Any) -> Iterator[Difference]:
    """What would stop Megatron as it loads, by the arguments that a checkpoint holds.

    Nothing for checkpoints that hold none, or are in a form that only their own loader reads.

    :param args: Megatron's, parsed and validated.
    """
    common = _common(args)
    saved = vars(common["args"]) if hasattr(common.get("args"), "__dict__") else {}
    if not saved:
        return
    given = vars(args)
    names = (
        name
        for gate, several in _MODEL.items()
        if not gate or (saved.get(gate) and given.get(gate))
        for name in several.split()
    )
    other = list(_differing(names, saved, given))
    # A hybrid model can begin with a GPT's weights.
    is_grown = bool(given.get("hybrid_layer_pattern")) and not saved.get("hybrid_layer_pattern")
    if other and not is_grown and not any(given.get(name) for name in _CONVERTS):
        yield (
            "the checkpoint in --load is another model's",
            tuple(other),
            "give the model's arguments of the run that saved it",
        )
    if given.get("finetune") or given.get("no_load_optim"):
        return
    yield from _of_optimizer(common, saved, given)


def _of_optimizer(
    common: Mapping[str, Any], saved: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[Difference]:
    alone = "--no-load-optim takes its weights alone"
    if saved.get("no_save_optim"):
        yield (
            "the checkpoint in --load has no optimizer",
            ("it was saved with --no-save-optim",),
            alone,
        )
        return
    other = list(_differing(_OPTIMIZER, saved, given))
    halves = [bool(one.get("bf16") or one.get("fp16")) for one in (saved, given)]
    if halves[0] is not halves[1]:
        words = ["bf16 or fp16" if half else "float32" for half in halves]
        other.append(f"precision: {words[0]} in the checkpoint, {words[1]} asked for")
    if other:
        yield (
            "the optimizer of the checkpoint in --load is another",
            tuple(other),
            f"train as the run that saved it; {alone}",
        )
        return
    sharding = (common.get("content_metadata") or {}).get("distrib_optim_sharding_type")
    moved = list(_differing(_LAYOUT, saved, given))
    if moved and sharding == "dp_reshardable":
        yield (
            "the optimizer of the checkpoint in --load resumes only in its own layout",
            tuple(moved),
            f"give the layout of the run that saved it; {alone}; saved with "
            "--dist-ckpt-optim-fully-reshardable it would resume in any",
        )


def _differing(
    names: Iterable[str], saved: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[str]:
    for name in names:
        if name not in saved or name not in given:
            continue
        # Not given is off; | divides the layers among stages, of which a checkpoint knows nothing.
        one, other = (str(values[name] or None).replace("|", "") for values in (saved, given))
        if one != other:
            yield f"{flag_of(name)}: {saved[name]} in the checkpoint, {given[name]} asked for"


def _common(args: Any) -> Mapping[str, Any]:
    """What all ranks load of the checkpoint; empty where it has no such part."""
    load = getattr(args, "load", None)
    if not load or "://" in load:
        return {}
    try:
        directory = checkpoint_of(Path(load), getattr(args, "ckpt_step", None))
    except BridgeError:  # another check's to tell
        return {}
    if directory is None or not (directory / "metadata.json").is_file():
        return {}
    from megatron.core.dist_checkpointing.serialization import load_common_state_dict

    try:
        found = load_common_state_dict(str(directory))
    except Exception:  # damaged, or a later Megatron's: loading says it, with its evidence
        return {}
    return found if isinstance(found, dict) else {}
