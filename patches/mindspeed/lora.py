"""Low-rank adapters (LoRA) for MindSpeed-LLM's fine-tuning scripts, on every backend."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from accel_bridge.patches._factory import megatron_arguments, megatron_patch
from accel_bridge.patches.checkpoints import TRACKER, checkpoint_of
from accel_bridge.patches.mindspeed.mapped_flags import Translation, translates
from accel_bridge.patching import Kind, PatchContext, after, around
from accel_bridge.patching.host import ArgumentError, Host

Namespace = argparse.Namespace

#: Attribute of Megatron's arguments that holds the :class:`Lora`, as a plain dict: checkpoints keep
#: the arguments, and are read where this class is not known.
ASKED: Final = "accel_bridge_lora"


@dataclass(frozen=True, slots=True)
class Lora:
    """What was asked for; the defaults are MindSpeed-LLM's.

    :param rank: columns of the first factor, rows of the second.
    :param alpha: the adapters' output is scaled by ``alpha / rank``.
    :param targets: the last part of the names of the linear layers that get an adapter. Without
        one there are no adapters.
    :param load: a checkpoint with the adapters, loaded after ``--load``.
    :param only_adapters: checkpoints hold the adapters without the model that they belong to.
    """

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ()
    load: str | None = None
    only_adapters: bool = False


def asked(args: Namespace) -> Lora | None:
    """The adapters of a run, if it has some."""
    lora = _read(args)
    return lora if lora.targets else None


def _read(args: Namespace) -> Lora:
    return Lora(**(getattr(args, ASKED, None) or {}))


def _update(args: Namespace, **changes: Any) -> Lora:
    lora = replace(_read(args), **changes)
    setattr(args, ASKED, asdict(lora))
    return lora


def _number(name: str) -> Translation:
    def number(args: Namespace, words: list[str]) -> str:
        if not words[0].isdecimal() or int(words[0]) < 1:
            raise ArgumentError(
                f"--lora-{'r' if name == 'rank' else name} takes a number above 0.",
                evidence=f"it is {words[0]}",
                next="--lora-r 16 --lora-alpha 32",
            )
        _update(args, **{name: int(words[0])})
        return f"the adapters' {name} is {words[0]}"

    return number


translates("--lora-r", "low-rank adapters: the adapters' rank (16)", values=1)(_number("rank"))
translates(
    "--lora-alpha",
    "low-rank adapters: their scale, alpha / rank (32)",
    values=1,
)(_number("alpha"))


@translates(
    "--lora-load",
    "low-rank adapters: adapters loaded after the model of `--load`",
    values=1,
)
def load(args: Namespace, words: list[str]) -> str:
    """``--lora-load DIR``: adapters that were trained before.

    :raises ArgumentError: there is no checkpoint.
    """
    if not (Path(words[0]) / TRACKER).is_file():
        raise ArgumentError(
            "--lora-load names no checkpoint.",
            evidence=f"{words[0]} has no {TRACKER}",
            next="give the directory that --save named, or remove --lora-load",
        )
    _update(args, load=words[0])
    args.lora_load = words[0]
    return f"adapters are loaded from {words[0]}"


@translates("--lora-ckpt-filter", "low-rank adapters: checkpoints that hold the adapters alone")
def only_adapters(args: Namespace, words: list[str]) -> str:
    """``--lora-ckpt-filter``: checkpoints without the frozen model."""
    _update(args, only_adapters=True)
    return "checkpoints hold the adapters alone"


@translates(
    "--lora-target-modules",
    "low-rank adapters: adapters on the linear layers of these names; nothing else is trained",
    values="+",
)
def targets(args: Namespace, words: list[str]) -> str:
    """``--lora-target-modules NAME...``: only the adapters of these linear layers are trained.

    They are put on Megatron's own linear layers, so the model is built from the local
    specification, as MindSpeed-LLM builds it.
    """
    lora = _update(args, targets=tuple(words))
    done = [f"adapters of rank {lora.rank} on {', '.join(words)}; nothing else is trained"]
    if getattr(args, "transformer_impl", "local") != "local":
        args.transformer_impl = "local"
        done.append("transformer_impl = local")
    if getattr(args, "num_experts", None):
        # An adapter for each expert: the experts are linear layers then.
        args.moe_grouped_gemm = False
        args.expert_tensor_parallel_size = 1
        done.append("moe_grouped_gemm = False, expert_tensor_parallel_size = 1")
    return ", ".join(done)


def add_adapters(model: Any, lora: Lora) -> str:
    """Freeze ``model`` and put adapters on its linear layers; returns a line that says how many.

    :raises ArgumentError: a target is the name of no linear layer.
    """
    from megatron.core.models.common.embeddings.language_model_embedding import (
        LanguageModelEmbedding,
    )

    from accel_bridge.patches.mindspeed.lora_linear import LINEAR, add_adapter

    linears = {name: one for name, one in model.named_modules() if isinstance(one, LINEAR)}
    last = {name: name.rpartition(".")[2] for name in linears}
    absent = {target for target in lora.targets if target not in {*linears, *last.values()}}
    if not getattr(model, "post_process", True):
        absent.discard("output_layer")  # another pipeline stage has it
    if absent:
        raise ArgumentError(
            "--lora-target-modules names what is no linear layer of this model.",
            evidence=f"not found: {', '.join(sorted(absent))}",
            next=f"choose from: {', '.join(sorted(set(last.values())))}",
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in list(model.modules()):
        if isinstance(module, LanguageModelEmbedding):
            module.register_forward_hook(_require_gradient)
    chosen = [name for name in linears if name in lora.targets or last[name] in lora.targets]
    for name in chosen:
        add_adapter(
            linears[name],
            rank=lora.rank,
            scale=lora.alpha / lora.rank,
            gated=last[name] == "linear_fc1" and linears[name].config.gated_linear_unit,
        )
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    share = sum(size for size, trained in sizes if trained) / sum(size for size, _ in sizes)
    return f"LoRA: {len(chosen)} adapters; {share:.2%} of this rank's weights are trained"


def _require_gradient(module: Any, inputs: Any, output: Any) -> None:
    """Recomputed layers get no gradient if their input asks for none; the embedding is frozen."""
    output.requires_grad_(True)


def _adapt(host: Host, training: Any, lora: Lora, model: Any) -> None:
    host.say_once(add_adapters(model, lora))
    model.register_load_state_dict_post_hook(functools.partial(_forgive_new_adapters, host))


def _get_model(context: PatchContext, call: Callable[..., Any], build: Any) -> Any:
    """As upstream; the model that the provider makes gets adapters."""
    training = context.module.get_args()
    lora = asked(training)
    if lora is None or build is None:
        return call()

    @functools.wraps(build)
    def with_adapters(*parts: Any, **named: Any) -> Any:
        model = build(*parts, **named)
        _adapt(context.host, training, lora, model)
        return model

    return call(model_provider_func=with_adapters)


def _build(context: PatchContext, call: Callable[..., Any], hook: Any) -> Any:
    """As upstream; the parts of the model get adapters before they are wrapped."""
    training = megatron_arguments()  # None of frameworks that build models themselves
    lora = asked(training)
    if lora is None:
        return call()

    def with_adapters(parts: list[Any]) -> list[Any]:
        built = hook(parts) if hook else parts
        for model in built:
            _adapt(context.host, training, lora, model)
        return built

    return call(pre_wrap_hook=with_adapters)


def _check(context: PatchContext, result: Any) -> None:
    """As upstream; a run that was to train adapters must have them."""
    lora = asked(context.module.get_args())
    names = (name for part in result[0] for name, _ in part.named_parameters())
    if lora is not None and not any(map(_is_adapter, names)):
        raise ArgumentError(
            "--lora-target-modules had no effect: the model has no adapters.",
            evidence="this program builds its model without get_model and without a builder",
            next="train with pretrain_gpt.py, or without the --lora flags",
        )


def _forgive_new_adapters(host: Host, model: Any, incompatible: Any) -> None:
    """``--load`` may name a model without any adapter: they start new, with no effect yet.

    The root's hook sees every missing key.
    """
    missing = incompatible.missing_keys
    found = {name for name, _ in model.named_parameters() if _is_adapter(name)}
    if found <= set(missing):
        host.say_once("LoRA: the checkpoint has no adapters, so they start new")
        missing[:] = [key for key in missing if not _is_adapter(key)]


def _is_adapter(key: str) -> bool:
    return ".lora_" in key


def _has_adapters(checkpoint: Path) -> bool:
    """Whether a distributed checkpoint has some; True if it is of another format."""
    from megatron.core import dist_checkpointing

    if not dist_checkpointing.check_is_distributed_checkpoint(str(checkpoint)):
        return True
    keys = dist_checkpointing.load_tensors_metadata(str(checkpoint))
    return any(map(_is_adapter, keys))


@contextmanager
def _part(training: Any, part: str | None) -> Iterator[None]:
    """A distributed checkpoint is asked for this part of the model only."""
    setattr(training, _PART, part)
    try:
        yield
    finally:
        delattr(training, _PART)


def _load(context: PatchContext, call: Callable[..., Any], load_arg: Any, _strict: bool) -> Any:
    """As upstream; then the adapters of ``--lora-load``, whose iteration counts."""
    training = context.module.get_args()
    lora = asked(training)
    if lora is None or load_arg not in (None, "load"):
        return call()
    model = checkpoint_of(Path(training.load), training.ckpt_step) if training.load else None
    part = None if model is None or _has_adapters(model) else "model"
    if not lora.load:
        with _part(training, part):
            return call()
    finetune, training.finetune = training.finetune, True
    try:
        with _part(training, part):
            call()
    finally:
        training.finetune = finetune
    with _part(training, "adapters"):
        return call(load_arg="lora_load", strict=False)


def _state_dict(_context: PatchContext, state: dict[str, Any], training: Any) -> None:
    """As upstream, with the part of the model that is saved or asked for."""
    lora = asked(training)
    if lora is None:
        return
    part = getattr(training, _PART, "adapters" if lora.only_adapters else None)
    if part is None:
        return
    for name in state:
        if name == "model" or (name[:5] == "model" and name[5:].isdecimal()):
            state[name] = {
                key: value
                for key, value in state[name].items()
                if _is_adapter(key) == (part == "adapters")
            }


#: Attribute of Megatron's arguments while a checkpoint is loaded: "model", "adapters" or None.
_PART: Final = "accel_bridge_lora_part"
_WHY = "MindSpeed-LLM's fine-tuning scripts train adapters (--lora-target-modules)"
_NEVER = "never: upstream does not know MindSpeed-LLM"

PATCHES = (
    megatron_patch(
        id="lora-model",
        target="megatron.training.training:get_model",
        kind=Kind.WRAP,
        make=around(_get_model),
        why=_WHY,
        removed_when=_NEVER,
        loses="--lora-target-modules is an error",
        uses=("model_provider_func",),
    ),
    megatron_patch(
        id="lora-builder",
        target="megatron.training.models.dist_utils:unimodal_build_distributed_models",
        kind=Kind.WRAP,
        make=around(_build),
        why=f"{_WHY}; Megatron 0.19 builds models without get_model",
        removed_when=_NEVER,
        loses="--lora-target-modules is an error",
        requires="megatron-core>=0.19",
        elsewhere="before 0.19 every model is built by get_model",
        uses=("pre_wrap_hook",),
    ),
    megatron_patch(
        id="lora-check",
        target="megatron.training.training:setup_model_and_optimizer",
        kind=Kind.WRAP,
        make=after(_check),
        why="a run that was to train adapters must not train the whole model",
        removed_when=_NEVER,
        loses="a program with a model builder of its own would train the whole model",
    ),
    megatron_patch(
        id="lora-load",
        target="megatron.training.checkpointing:load_checkpoint",
        kind=Kind.WRAP,
        make=around(_load),
        why=f"{_WHY}; --lora-load names a checkpoint of theirs beside the model's",
        removed_when=_NEVER,
        loses="--lora-load has no effect",
        uses=("load_arg", "strict"),
    ),
    megatron_patch(
        id="lora-save",
        target="megatron.training.checkpointing:generate_state_dict",
        kind=Kind.WRAP,
        make=after(_state_dict),
        why=f"{_WHY}; --lora-ckpt-filter saves only them",
        removed_when=_NEVER,
        loses="checkpoints hold the frozen model too",
        uses=("args",),
    ),
)
