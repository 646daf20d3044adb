"""The command ``accel-bridge count-beads``."""

from __future__ import annotations

from collections.abc import Sequence

from abacus_bridge.backend import AbacusBackend


def main(words: Sequence[str]) -> int:
    """Print how many beads there are, and return the exit status.

    :param words: the words after the command's name; they are ignored.
    """
    devices = AbacusBackend().probe().devices or 0
    print(f"{devices * 65536} beads")
    return 0 if devices else 1
