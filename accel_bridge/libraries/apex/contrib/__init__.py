"""Apex's further kernels: LayerNorm for large hidden sizes. ``nccl_allocator`` is absent."""
