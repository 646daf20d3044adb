"""One model's losses and gradients with and without logits, and who reads logits: for a test.

Prints a line for each case: ``name fused error``, where fused is 1 if the loss had no logits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.transformer import TransformerConfig

import accel_bridge.auto  # noqa: F401 - before Megatron
from accel_bridge.backends import _linear_cross_entropy as chunked
from accel_bridge.patches.modules import output_loss

VOCABULARY, LENGTH, BATCH = 32, 8, 2
#: Chunks of tokens that went through the kernel.
CHUNKS: list[int] = []


class OwnLoss(GPTModel):  # type: ignore[misc]
    """A model whose loss is its own, and reads logits."""

    def compute_language_model_loss(self, labels: Any, logits: Any) -> Any:
        """Megatron's."""
        return super().compute_language_model_loss(labels, logits)


def model(
    kind: type[GPTModel] = GPTModel, dtype: torch.dtype = torch.float32, **options: Any
) -> Any:
    """Two layers; the same weights each time."""
    torch.manual_seed(1)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    more = {"params_dtype": dtype, "bf16": dtype == torch.bfloat16, **options}
    tied = more.pop("tied", False)
    config = TransformerConfig(num_layers=2, hidden_size=16, num_attention_heads=2, **more)
    spec = get_gpt_layer_local_spec()
    heads = None
    if more.get("mtp_num_layers"):
        heads = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    return kind(
        config,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        share_embeddings_and_output_weights=tied,
        position_embedding_type="rope",
        mtp_block_spec=heads,
    )


def results(made: Any, labels: bool = True, **call: Any) -> list[torch.Tensor]:
    """Losses and the gradients of all parameters, or logits."""
    draws = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=draws)
    mask = (torch.rand(BATCH, LENGTH, generator=draws) > 0.3).float()
    positions = torch.arange(LENGTH).expand(BATCH, -1)
    hidden = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    if labels:
        call |= {"labels": tokens[:, 1:].contiguous()}
    output = made(tokens[:, :-1].contiguous(), positions, hidden, **call)
    if not labels:
        return [output.detach()]
    if torch.is_grad_enabled():
        (output.float() * mask).sum().div(mask.sum()).backward()
    gradients = [one.grad for one in made.parameters() if one.grad is not None]
    return [output.detach(), *gradients]


def compare(
    name: str,
    make: Callable[[], Any] = model,
    around: Callable[[], Any] = nullcontext,
    **call: Any,
) -> None:
    """One case; Megatron's own road is that of a model that is told somebody reads logits."""
    found = []
    for given in (output_loss.reason_against, lambda *_: "for a test"):
        original = output_loss.reason_against
        output_loss.reason_against = given
        CHUNKS.clear()
        with around():
            found.append((len(CHUNKS), results(make(), **call), len(CHUNKS)))
        output_loss.reason_against = original
    (_, mine, chunks), (_, upstream, none) = found
    assert none == 0
    assert len(mine) == len(upstream)
    error = max(
        float((one - other).abs().max() / other.abs().max().clamp(min=1e-6))
        for one, other in zip(mine, upstream, strict=True)
    )
    print(f"case {name}: {int(chunks > 0)} {error:.3e}")


def hooked() -> Any:
    """Somebody looks at the output layer's result."""
    made = model()

    def look(module: Any, given: Any, result: Any) -> None:
        assert isinstance(result[0], torch.Tensor)

    made.output_layer.register_forward_hook(look)
    return made


@contextmanager
def watched(module: str) -> Iterator[None]:
    """A hook of this module's that sees the results of all modules."""

    def look(module: Any, given: Any, result: Any) -> None:
        """It keeps nothing."""

    look.__module__ = module
    handle = torch.nn.modules.module.register_module_forward_hook(look)
    yield
    handle.remove()


def replaced() -> Any:
    """A loss that somebody has put on the object."""
    made = model()
    loss = made.compute_language_model_loss

    def doubled(labels: Any, logits: Any) -> Any:
        assert isinstance(logits, torch.Tensor)
        return 2 * loss(labels, logits)

    made.compute_language_model_loss = doubled
    return made


def processed(*, hidden_states: Any, output_layer: Any, labels: Any, **rest: Any) -> Any:
    """A caller's own last step."""
    logits, _ = output_layer(hidden_states, weight=rest["output_weight"])
    assert isinstance(logits, torch.Tensor)
    return rest["compute_language_model_loss"](labels, logits)


def main() -> None:
    """Every case."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    made = chunked._logits

    def counted(*given: Any) -> torch.Tensor:
        CHUNKS.append(1)
        return made(*given)

    chunked._logits = counted
    compare("untied")
    compare("tied", lambda: model(tied=True))
    compare("bfloat16", lambda: model(dtype=torch.bfloat16))
    compare("loss mask", loss_mask=torch.ones(BATCH, LENGTH))
    compare("mup", lambda: model(use_mup=True, mup_width_mult=4.0))
    compare("fused loss", lambda: model(cross_entropy_loss_fusion=True))
    compare("mtp", lambda: model(mtp_num_layers=1))
    compare("without gradients", around=torch.no_grad)
    compare("no labels", labels=False)
    compare("hook", hooked)
    compare("hook everywhere", around=lambda: watched("user"))
    compare("rehearsal", around=lambda: watched("accel_bridge.apps.rehearse.mode"))
    compare("replaced loss", replaced)
    compare("own loss", lambda: model(OwnLoss))
    compare("processor", output_processor=processed)
    torch.distributed.destroy_process_group()


main()
