"""The three data sets that MindSpeed-LLM's tool writes for ``--output-prefix`` PREFIX."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from accel_bridge.patching.host import ArgumentError

#: Attribute of Megatron's arguments that says how the data are read.
ASKED: Final = "accel_bridge_instruction"
FIELDS: Final = ("input_ids", "labels", "attention_mask")


def field(prefix: str, name: str) -> str:
    """Prefix of one of the data sets of ``--data-path`` PREFIX."""
    return f"{prefix}_packed_{name}_document"


def check(prefixes: list[str]) -> None:
    """:raises ArgumentError: ``--data-path`` names no instruction data."""
    for prefix in prefixes:
        missing = [name for name in FIELDS if not Path(field(prefix, name) + ".bin").is_file()]
        if missing:
            raise ArgumentError(
                "--data-path names no instruction data.",
                evidence=f"{field(prefix, missing[0])}.bin does not exist",
                next="give the prefix that MindSpeed-LLM's preprocess_data.py was given as "
                "--output-prefix, without _packed_input_ids_document",
            )
