"""How the attention kernel is called; a plugin's flags may choose. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accel_bridge.kernels import Layout

#: Key of :class:`AttentionChoice` for ``Host.once``.
CHOICE: Final = "attention-choice"


@dataclass
class AttentionChoice:
    """How the attention kernel is called; set when the program's arguments are known.

    :param layout: a layout of the attention contract; the result does not depend on it.
    """

    layout: Layout = "SBHD"
