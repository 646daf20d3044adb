"""Log-probabilities of given tokens by the model that Megatron has loaded."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing import load_common_state_dict
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.transformer import transformer_config
from megatron.training import get_args

from accel_bridge.patches.checkpoints import TRACKER
from accel_bridge.patches.modules.recorded_identity import ARGUMENTS
from accel_bridge.patching.host import ArgumentError
from accel_bridge.recording import Plan

#: Fields of a configuration that say how a model is computed, or on how many stages.
_HOW: Final = re.compile(
    "recompute|distribute_saved|fp8|fp4|graph|inference|offload|dispatcher|deepep|hybridep|ncclep|"
    "fusion|init_method|dtype|pipeline|dropout|attention_backend|transformer_impl|overlap|kitchen|"
    "symmetric|heterogeneous_block|quant_recipe|cp_comm|config_logger|meta_device"
)
#: Arguments of a model that are no fields.
_MODEL: Final = re.compile(
    "(rope|rotary|yarn|mamba|hybrid|no_rope)_.*|num_experts|norm_epsilon|padded_vocab_size|spec|"
    "add_position_embedding|use_rotary_position_embeddings|use_rope_scaling|glu_linear_offset|"
    "apply_layernorm_1p|num_queries|use_mcore_models|heterogeneous_layers_config_encoded_json"
)


def take_model(args: Any) -> None:
    """Give ``args`` the model that the checkpoint in ``args.load`` was saved with.

    :raises ArgumentError: it does not say.
    """
    saved = vars(_saved(Path(args.load)))
    fields = {
        one.name
        for kind in ("TransformerConfig", "MLATransformerConfig")
        for one in dataclasses.fields(getattr(transformer_config, kind))
    } - {one.name for one in dataclasses.fields(ModelParallelConfig)}
    names = {*fields, *ARGUMENTS["model"], *filter(_MODEL.fullmatch, saved)}
    for name in names & saved.keys() & vars(args).keys():
        if not _HOW.search(name):
            setattr(args, name, saved[name])
    if getattr(args, "hybrid_layer_pattern", None):
        args.num_layers = None  # Megatron counts them itself
    args.vocab_size = args.padded_vocab_size - 1  # and one more for the end of a document
    args.make_vocab_size_divisible_by = 1


def _saved(directory: Path) -> Any:
    """The arguments in a checkpoint, in either format."""
    word = (directory / TRACKER).read_text(encoding="utf-8").strip()
    inner = directory / (f"iter_{int(word):07d}" if word.isdigit() else word)
    one = next(iter(sorted(inner.glob("mp_rank_*/model_optim_rng.pt"))), None)
    if one is None:
        held = load_common_state_dict(str(inner))
    else:
        held = torch.load(one, map_location="cpu", weights_only=False)
    if "args" in held:
        return held["args"]
    raise ArgumentError(
        "The checkpoint does not say what model it is of.",
        evidence=f"{inner} holds no args",
        next="give a checkpoint that Megatron's own training has saved",
    )


def write_scored(model: Sequence[torch.nn.Module], plan: Plan) -> NoReturn:
    """Score the plan's tokens, write them, and end the process."""
    if parallel_state.get_pipeline_model_parallel_world_size() > 1 or len(model) > 1:
        raise ArgumentError(
            "Tokens are scored in one stage.",
            evidence=f"--pipeline-model-parallel-size {get_args().pipeline_model_parallel_size}",
            next="leave it out: a checkpoint of any layout can be loaded",
        )
    (whole,) = model
    whole.eval()
    prompts = json.loads(Path(plan.tokens).read_text(encoding="utf-8"))
    with torch.no_grad():
        found = [{"tokens": one, "logprobs": [None, *_score(whole, one)]} for one in prompts]
    if torch.distributed.get_rank() == 0:
        Path(plan.out).write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    raise SystemExit(0)


def _score(model: torch.nn.Module, tokens: Iterable[int]) -> list[float]:
    held = torch.tensor([list(tokens)], device=torch.cuda.current_device())
    positions = torch.arange(held.shape[1] - 1, device=held.device)[None]
    # With labels, a model gives each token's loss, whichever rank has its logit.
    losses = model(held[:, :-1], positions, None, labels=held[:, 1:].contiguous())
    return [-float(one) for one in losses.float().flatten()]
