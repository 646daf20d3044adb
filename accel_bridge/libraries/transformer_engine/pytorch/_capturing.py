"""Whether graphs are being captured."""

from __future__ import annotations

import torch

_is_capturing = False


def set_capture_start() -> None:
    """From now on graphs are captured."""
    global _is_capturing
    _is_capturing = True


def set_capture_end() -> None:
    """No graphs are captured any more."""
    global _is_capturing
    _is_capturing = False


def is_graph_capturing() -> bool:
    """Whether graphs are being captured, by whomever."""
    return _is_capturing


def captures() -> bool:
    """Whether what runs now is or will be part of a graph: nothing may wait for the device."""
    return _is_capturing or torch.cuda.is_current_stream_capturing()
