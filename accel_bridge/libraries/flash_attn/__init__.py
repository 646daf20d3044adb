"""flash-attn's interface on the active backend's attention kernel.

It claims the newest version that Transformer Engine and Megatron accept, 2.8.3.
"""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package, version_of

__version__ = version_of("flash_attn")
__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "flash_attn_interface": (
            "flash_attn_func",
            "flash_attn_kvpacked_func",
            "flash_attn_qkvpacked_func",
            "flash_attn_varlen_func",
            "flash_attn_varlen_kvpacked_func",
            "flash_attn_varlen_qkvpacked_func",
            "flash_attn_with_kvcache",
        )
    },
    ("bert_padding", "flash_attn_interface", "layers", "losses", "modules", "ops"),
)
