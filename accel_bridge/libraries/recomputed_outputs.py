"""What a recomputed function may hand out.

A function of autograd that returns a parameter becomes that parameter's history: the recomputation
then leads back to itself.
"""

from __future__ import annotations

from typing import Any

import torch


def without_parameters(outputs: Any) -> Any:
    """The outputs, a tuple or one, with views in the place of parameters."""
    return tuple(map(_view, outputs)) if isinstance(outputs, tuple) else _view(outputs)


def _view(value: Any) -> Any:
    return value.view_as(value) if isinstance(value, torch.nn.Parameter) else value
