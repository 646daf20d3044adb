"""Pretrain a hybrid model with Megatron: Mamba, attention, MLP and expert layers by a pattern.

Run it with ``accel-bridge pretrain --model hybrid`` or with
``torchrun -m accel_bridge.pretrain.pretrain_hybrid``; ``--hybrid-layer-pattern`` names the layers.
"""

from __future__ import annotations

# The bridge must be active before Megatron is imported.
import accel_bridge.auto  # noqa: F401

# isort: split

from accel_bridge.pretrain.command import run_older


def main() -> None:
    """Train with the arguments of the command line."""
    if run_older("hybrid"):
        return
    from megatron.training.argument_utils import hybrid_config_from_args

    from accel_bridge.pretrain.training import train

    train(hybrid_config_from_args)


if __name__ == "__main__":
    main()
