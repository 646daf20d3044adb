"""What is said about a record that ends a run."""

from __future__ import annotations

from .errors import InputError
from .inputs import Source
from .records import BadRecord


def bad_record(source: Source, number: int, bad: BadRecord, advice: str) -> InputError:
    """The error for a record that ends a run.

    :param number: of its line or row in the file, from 1.
    :param advice: what else fixes it, as a continuation of "fix it, ".
    """
    is_line = source.format == "jsonl"
    where = f"{source.name}:{number}" if is_line else f"{source.name} row {number}"
    if is_line and number == 1 and bad.reason.startswith("not JSON"):
        advice += "; if it is plain text: --input-format text"
    return InputError(
        f"a bad record in {where}",
        evidence=[f"{where}: {bad.reason}"],
        next=f"fix it, {advice}",
    )
