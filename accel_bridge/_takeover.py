"""Another project's adaptor of the framework that can take a device over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accel_bridge._errors import SelectionError


def _nothing() -> None:
    """The start of an adaptor that is not used."""


def _covers_nothing(patch_id: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Whether an adaptor takes the selected backend's device over, and why.

    :param adaptor: its name, for people.
    :param taken: it is here, fits the framework that is here, and can still be imported first.
    :param why: one sentence with the reason, either way.
    :param evidence: what was looked at.
    :param next: what would make it usable; shown where it was required, and where nothing else
        can be used.
    :param required: the setting by which the user insists on it, e.g. ``VARIABLE=require``; empty
        where nobody does.
    :param start: imports it and checks that it works; raises BridgeError where it does not.
    :param covers: the reason to leave out a patch (by id) that the adaptor makes needless, or None.
    """

    adaptor: str
    taken: bool
    why: str
    evidence: tuple[str, ...] = ()
    next: str = ""
    required: str = ""
    start: Callable[[], None] = _nothing
    covers: Callable[[str], str | None] = _covers_nothing


def choose_takeover(found: Sequence[Takeover], backend: str) -> Takeover | None:
    """The adaptor that takes over, or None for accel_bridge's own kernels and patches.

    :param found: what the plugins say of the adaptors that they know.
    :param backend: name of the selected backend.
    :raises SelectionError: one was required and cannot be used.
    """
    for one in found:
        if one.required and not one.taken:
            raise SelectionError(
                f"{one.adaptor} was required, and it cannot be used here.",
                evidence=[
                    one.required,
                    f"backend {backend}",
                    f"{one.adaptor}: {one.why}",
                    *one.evidence,
                ],
                next=one.next,
            )
    # The one that the user insists on, else the first.
    return next((one for one in sorted(found, key=lambda one: not one.required) if one.taken), None)
