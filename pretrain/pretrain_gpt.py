"""Pretrain a GPT model with Megatron: every flag of megatron.training, on any accelerator.

Run it with ``accel-bridge pretrain``, with ``torchrun -m accel_bridge.pretrain.pretrain_gpt``, or
as a script with ``torchrun -m accel_bridge.run``. A pip-installed Megatron carries the training
loop but no such script.

Legend: b micro batch, s sequence length of this context-parallel rank.
"""

from __future__ import annotations

# The bridge must be active before Megatron is imported.
import accel_bridge.auto  # noqa: F401

# isort: split

from functools import partial

from megatron.core.enums import ModelType
from megatron.core.transformer.multi_token_prediction import get_mtp_ranks
from megatron.training import get_args, inprocess_restart, pretrain
from megatron.training.argument_utils import (
    gpt_config_from_args,
    pretrain_cfg_container_from_args,
)
from megatron.training.arguments import (
    core_transformer_config_from_args,
    parse_and_validate_args,
)

from accel_bridge.pretrain.gpt_data import check_data, datasets_provider
from accel_bridge.pretrain.gpt_step import forward_step


def embedding_ranks(pipeline_ranks: list[int]) -> list[int]:
    """Ranks of one pipeline that hold the word embeddings.

    The first stage; the last one too when it shares them with the output layer; and every stage
    with a multi-token-prediction block.
    """
    ranks = {pipeline_ranks[0]}
    if len(pipeline_ranks) > 1:
        args = get_args()
        if not args.untie_embeddings_and_output_weights:
            ranks.add(pipeline_ranks[-1])
        ranks.update(get_mtp_ranks(pipeline_ranks, core_transformer_config_from_args(args)))
    return sorted(ranks)


def main() -> None:
    """Parse Megatron's arguments from the command line and train."""
    run, store = inprocess_restart.maybe_wrap_for_inprocess_restart(pretrain)
    args = parse_and_validate_args(args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
    check_data(args)
    config = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
    # Every rank decides by itself whether it builds datasets.
    provider = partial(datasets_provider)
    provider.is_distributed = True  # type: ignore[attr-defined]
    run(
        config,
        provider,
        ModelType.encoder_or_decoder,
        forward_step,
        store=store,
        get_embedding_ranks=embedding_ranks,
    )


if __name__ == "__main__":
    main()
