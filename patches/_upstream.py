"""Which Megatron the patches are for, and where it comes from."""

from __future__ import annotations

#: Distribution name that ``requires`` of the patches refers to.
DISTRIBUTION = "megatron-core"

#: Megatron versions that an installation can take from the package index.
TESTED = ">=0.19,<0.20"

#: What a patch requires unless it says more: the oldest version that was looked at.
REQUIRES = f"{DISTRIBUTION}>=0.12"

#: Where upstream references point: the tag that the patches were written against.
SOURCE = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.19.0"

#: The version in the table of targets that upstream references are taken from.
REFERENCE = "0.19.2"
