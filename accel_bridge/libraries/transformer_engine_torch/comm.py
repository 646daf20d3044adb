"""What is asked of user buffers, NVSHMEM and NCCL's expert parallelism: none of them is here."""

from __future__ import annotations

from typing import Any

from accel_bridge.libraries.transformer_engine_torch import refuse


class _Refused:
    """A class whose objects cannot be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(type(self).__name__)


class CommOverlapHelper(_Refused): ...


class CommOverlapCore(_Refused): ...


class CommOverlapBase(CommOverlapCore): ...


class CommOverlapP2PBase(CommOverlapCore): ...


class CommOverlap(CommOverlapBase): ...


class CommOverlapP2P(CommOverlapP2PBase): ...


def device_supports_multicast(device_id: int = -1) -> bool:
    """No: user buffers are not served."""
    return False


def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """Streams have no priorities."""
    return 0, 0


def ubuf_built_with_mpi() -> bool:
    """There is no MPI."""
    return False


def ep_zero_copy_supported() -> bool:
    """NCCL's expert parallelism is not served."""
    return False
