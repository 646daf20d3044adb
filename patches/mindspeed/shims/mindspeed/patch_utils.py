"""MindSpeed's table of patches, which is empty here."""

from __future__ import annotations

from typing import Any, ClassVar


class MindSpeedPatchesManager:
    """Knows no patch."""

    patches_info: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_patch(cls, orig_func_or_cls_name: str, *args: Any, **kwargs: Any) -> None:
        """:raises NotImplementedError: nothing would apply it."""
        raise NotImplementedError(
            f"MindSpeed cannot patch {orig_func_or_cls_name} here\n"
            "  evidence: accel_bridge does MindSpeed's work on this machine\n"
            "  next:     write it as a patch of a plugin (docs/extend-patch.md)"
        )

    @classmethod
    def apply_patches(cls) -> None:
        """There are none."""
