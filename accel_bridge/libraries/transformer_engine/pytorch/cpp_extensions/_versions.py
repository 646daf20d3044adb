"""Versions and counts of NVIDIA's libraries."""

from __future__ import annotations

import torch


def get_cublasLt_version() -> int:
    """The CUDA version of torch, as cuBLAS writes its own: 12.9 is 120900; 0 without CUDA."""
    major, _, minor = (torch.version.cuda or "0.0").partition(".")
    return int(major) * 10000 + int(minor) * 100


def get_cudnn_version() -> int:
    """cuDNN's version as it writes it; 0 without it."""
    return int(torch.backends.cudnn.version() or 0)


def get_num_cublas_streams() -> int:
    """Streams over which a grouped product is spread."""
    return 1
