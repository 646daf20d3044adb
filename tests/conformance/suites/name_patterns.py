"""Names of tests with ``*`` for anything, as the reviewed lists write them."""

from __future__ import annotations

import re


def matches(pattern: str, test: str) -> bool:
    """Whether ``test`` (file::name) is one that ``pattern`` names.

    Names of tests hold brackets, which fnmatch reads as sets.
    """
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), test) is not None
