"""The version of torch."""

from __future__ import annotations

import functools

import torch
from packaging.version import Version


@functools.cache
def torch_version() -> tuple[int, ...]:
    """Numbers of torch's release, e.g. (2, 11, 0)."""
    return Version(str(torch.__version__)).release
