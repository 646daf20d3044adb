"""Pretrain a GPT model with Megatron: every flag of megatron.training, on any accelerator.

Run it with ``accel-bridge pretrain``, with ``torchrun -m accel_bridge.pretrain.pretrain_gpt``, or
as a script with ``torchrun -m accel_bridge.run``. A pip-installed Megatron carries the training
loop but no such script.
"""

from __future__ import annotations

# The bridge must be active before Megatron is imported.
import accel_bridge.auto  # noqa: F401

# isort: split

from accel_bridge.pretrain.command import run_older


def embedding_ranks(pipeline_ranks: list[int]) -> list[int]:
    """Ranks of one pipeline that hold the word embeddings.

    The first stage; the last one too when it shares them with the output layer; and every stage
    with a multi-token-prediction block.
    """
    from megatron.core.transformer.multi_token_prediction import get_mtp_ranks
    from megatron.training import get_args
    from megatron.training.arguments import core_transformer_config_from_args

    ranks = {pipeline_ranks[0]}
    if len(pipeline_ranks) > 1:
        args = get_args()
        if not args.untie_embeddings_and_output_weights:
            ranks.add(pipeline_ranks[-1])
        ranks.update(get_mtp_ranks(pipeline_ranks, core_transformer_config_from_args(args)))
    return sorted(ranks)


def main() -> None:
    """Train with the arguments of the command line."""
    if run_older("gpt"):
        return
    from megatron.training.argument_utils import gpt_config_from_args

    from accel_bridge.pretrain.training import train

    train(gpt_config_from_args, get_embedding_ranks=embedding_ranks)


if __name__ == "__main__":
    main()
