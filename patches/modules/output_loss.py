"""A language model whose loss is computed from hidden states, while its forward pass runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Final

import torch
from megatron.core import parallel_state
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.tensor_parallel import mappings
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer import multi_token_prediction
from torch.nn.modules import module as torch_module

from accel_bridge.kernels import LOSS_CHUNK, Kernel, saves_memory
from accel_bridge.libraries.main_grad import placeholder
from accel_bridge.patches._variables import FUSED_OUTPUT
from accel_bridge.recording import current_plan

#: Megatron counts how many of the tokens that MTP predicts are right: it reads these logits.
_MTP_IS_READ: Final = hasattr(multi_token_prediction, "_compute_mtp_acceptance_counts")
#: What Megatron or a user can do around a module's result.
_HOOKS: Final = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS: Final = tuple(f"_global{name}" for name in _HOOKS)
_LINE: Final = (
    f"output layer and loss: {LOSS_CHUNK:,} tokens at a time, without the logits of all "
    f"({FUSED_OUTPUT.name}=off keeps them)"
)
#: Attributes of an output layer that take its result elsewhere -> what they are as a rule.
_USUAL: Final = {
    "bias": None,
    "explicit_expert_comm": False,
    "disable_grad_reduce": False,
    "output_dtype": None,
    "gtp_remat_size": 1,
}


def reason_against(model: Any, given: Mapping[str, Any]) -> str | None:
    """Why somebody may read this forward pass's logits or expects more of them; None if nobody.

    :param given: the arguments of the model's forward pass by name.
    """
    for name in ("output_processor", "inference_context", "inference_params"):
        if given.get(name) is not None:
            return name
    if {"compute_language_model_loss", "_postprocess"} & vars(model).keys():
        return "the loss was replaced"
    if type(model).compute_language_model_loss is not LanguageModule.compute_language_model_loss:
        return "the model has a loss of its own"
    layer: Any = getattr(model, "output_layer", None)
    if not model.post_process or type(layer) is not ColumnParallelLinear:
        return "the output layer is another"
    if "forward" in vars(layer):
        return "the output layer's forward pass was replaced"
    if any(getattr(layer, name, usual) != usual for name, usual in _USUAL.items()):
        return "the output layer does more than a GEMM"
    whole = given.get("runtime_gather_output")
    if (layer.gather_output if whole is None else whole) and _ranks(model) > 1:
        return "the logits are gathered"
    if any(getattr(layer, name, None) for name in _HOOKS) or _watches_all_modules():
        return "a hook"
    config = model.config
    if config.defer_embedding_wgrad_compute:
        return "the weight's gradient is computed later"
    if getattr(config, "config_logger_dir", "") or current_plan() is not None:
        return "the logits are recorded"
    if getattr(config, "_cpu_offloading_context", None) is not None:
        return "activations are offloaded"
    if getattr(config, "cuda_graph_impl", None) == "full_iteration" or (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    ):
        return "a graph"
    autocast = torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()
    return "autocast" if autocast else None


def _watches_all_modules() -> bool:
    """Whether a hook sees the results of all modules; a rehearsal's sees which of them run."""
    hooks = (hook for name in _GLOBAL_HOOKS for hook in getattr(torch_module, name, {}).values())
    return any(
        not str(getattr(hook, "__module__", "")).startswith("accel_bridge.apps.rehearse")
        for hook in hooks
    )


def _speaks() -> bool:
    """Whether this rank is the first of the last pipeline stage, which has the loss."""
    data = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    return (parallel_state.get_tensor_model_parallel_rank(), data) == (0, 0)


def _ranks(model: Any) -> int:
    return int(_group(model).size())


def _group(model: Any) -> Any:
    # A group of the layer's own since 0.14.
    group = getattr(model.output_layer, "tp_group", None)
    if group is None:
        from megatron.core.parallel_state import get_tensor_model_parallel_group

        group = get_tensor_model_parallel_group()
    return group


class Fused:
    """While it is entered, the model's output layer gives logits that are only promised.

    :param loss_mask: [b, s] or None.
    :param always: also where it saves no memory.
    :param say: tells the user once.
    """

    def __init__(
        self,
        model: Any,
        kernel: Kernel[Any, Any],
        loss_mask: torch.Tensor | None,
        always: bool,
        say: Callable[[str], None],
    ) -> None:
        self.model, self.kernel, self.loss_mask = model, kernel, loss_mask
        self.always, self.say = always, say
        heads = getattr(model.config, "mtp_num_layers", None) or 0
        #: Calls of the output layer before the main one, and those whose logits are read.
        self.before = heads
        self.unfused = heads if _MTP_IS_READ and model.training else 0

    def __enter__(self) -> None:
        layer = self.model.output_layer
        layer.forward = self._output
        self.model.compute_language_model_loss = self._loss

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self.model.output_layer.forward, self.model.compute_language_model_loss

    def _output(
        self, input_: torch.Tensor, weight: torch.Tensor | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Any, None]:
        """[s, b, h], this rank's part of s with sequence parallelism, and the weight if shared."""
        layer = self.model.output_layer
        expected = self.loss_mask if self.before == 0 else None
        self.before -= 1

        def compute() -> Any:
            return ColumnParallelLinear.forward(layer, input_, weight, *args, **kwargs)[0]

        used = layer.weight if weight is None else weight
        if self.unfused > 0 or not self._takes(input_, used):
            self.unfused -= 1
            return compute(), None
        return Promised(compute, input_, used, expected), None

    def _takes(self, hidden: torch.Tensor, weight: torch.Tensor) -> bool:
        if hasattr(weight, "__fsdp_param__") or hidden.dim() != 3:
            return False
        if self.kernel.supports(hidden, weight, None) is not None:
            return False
        if self.always:
            return True
        ranks = _ranks(self.model) if self.model.output_layer.sequence_parallel else 1
        return saves_memory(
            hidden.shape[0] * hidden.shape[1] * ranks,
            hidden.shape[2],
            weight.shape[0],
            hidden.element_size(),
            trains_weight=weight.requires_grad and torch.is_grad_enabled(),
        )

    def _loss(self, labels: torch.Tensor, logits: Any) -> Any:
        """[b, s] of labels [b, s]."""
        if not isinstance(logits, Promised) or logits.is_computed:
            if isinstance(logits, Promised):
                logits = logits.computed
            return LanguageModule.compute_language_model_loss(self.model, labels, logits)
        layer, group = self.model.output_layer, _group(self.model)
        if _speaks():
            self.say(_LINE)
        hidden, weight = logits.hidden, logits.weight
        if layer.sequence_parallel:
            hidden = _in(mappings.gather_from_sequence_parallel_region, group)(hidden)
        elif _ranks(self.model) > 1:
            hidden = _in(mappings.copy_to_tensor_model_parallel_region, group)(hidden)
        main_grad = None
        if layer.gradient_accumulation_fusion and weight.requires_grad and torch.is_grad_enabled():
            main_grad = getattr(weight, "main_grad", None)
        if main_grad is not None:
            weight = _Added.apply(weight, main_grad)
        mask = logits.expected
        if mask is not None:
            mask = mask.transpose(0, 1) if mask.shape == labels.shape else None
        loss = self.kernel(
            hidden,
            weight,
            labels.transpose(0, 1).contiguous(),
            token_weight=mask,
            group=group,
            scale=logits.scale,
            main_grad=main_grad,
        )
        return loss.transpose(0, 1).contiguous()


class Promised:
    """Logits [s, b, v / p] that nobody has computed; whoever reads them gets real ones.

    :param compute: makes the real ones.
    """

    def __init__(
        self,
        compute: Callable[[], torch.Tensor],
        hidden: torch.Tensor,
        weight: torch.Tensor,
        expected: torch.Tensor | None,
        scale: float = 1.0,
    ) -> None:
        self._compute, self.hidden, self.weight = compute, hidden, weight
        self.expected, self.scale = expected, scale

    @cached_property
    def computed(self) -> torch.Tensor:
        """Upstream's logits, with their graph."""
        logits = self._compute()
        return logits if self.scale == 1.0 else logits * self.scale

    @property
    def is_computed(self) -> bool:
        """Somebody has read them."""
        return "computed" in vars(self)

    def __mul__(self, factor: Any) -> Any:
        if isinstance(factor, float | int) and self.scale == 1.0 and not self.is_computed:
            scale = float(factor)
            return Promised(self._compute, self.hidden, self.weight, self.expected, scale)
        return self.computed * factor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.computed, name)

    def __getitem__(self, item: Any) -> torch.Tensor:
        return self.computed[item]

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def real(value: Any) -> Any:
            if isinstance(value, Promised):
                return value.computed
            if isinstance(value, list | tuple):
                return type(value)(map(real, value))
            return value

        return function(
            *real(args), **{name: real(value) for name, value in (kwargs or {}).items()}
        )


class _Added(torch.autograd.Function):
    """A weight whose gradient the loss adds to ``main_grad``: autograd gets what stands for it."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.weight, ctx.main_grad = weight, main_grad
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return placeholder(ctx.weight, ctx.main_grad), None


def _in(function: Callable[..., Any], group: Any) -> Callable[..., Any]:
    """A mapping of Megatron's in a group; before 0.14 it knows its own group only."""
    if "group" not in inspect.signature(function).parameters:
        return function
    return lambda tensor: function(tensor, group=group)
