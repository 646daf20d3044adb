"""Adaptors from other projects that can take a device over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accel_bridge.errors import SelectionError


def _nothing() -> None:
    """The start of an adaptor that is not used."""


def _covers_nothing(patch_id: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """Whether an adaptor takes over the selected backend's device, and why.

    :param adaptor: its name, for people.
    :param taken: it is installed, fits the installed framework, and can still be imported first.
    :param why: one sentence with the reason, either way.
    :param evidence: what was looked at.
    :param next: what would make it usable; shown if it is required, or if nothing else can be
        used.
    :param required: the setting that requires it, e.g. ``VARIABLE=require``; empty if none does.
    :param start: imports it and checks that it works; raises BridgeError if it does not.
    :param done: the script imported it before accel_bridge, and the framework with it.
    :param covers: takes a patch id; returns why the adaptor makes that patch unnecessary, or None.
    """

    adaptor: str
    taken: bool
    why: str
    evidence: tuple[str, ...] = ()
    next: str = ""
    required: str = ""
    start: Callable[[], None] = _nothing
    done: bool = False
    covers: Callable[[str], str | None] = _covers_nothing


def choose_delegation(found: Sequence[Delegation], backend: str) -> Delegation | None:
    """The adaptor that takes over, or None for accel_bridge's own kernels and patches.

    :param found: what the plugins report about the adaptors they know.
    :param backend: name of the selected backend.
    :raises SelectionError: an adaptor is required but cannot be used.
    """
    for one in found:
        if one.required and not one.taken:
            raise SelectionError(
                f"{one.adaptor} was required but cannot be used here.",
                evidence=[
                    one.required,
                    f"backend {backend}",
                    f"{one.adaptor}: {one.why}",
                    *one.evidence,
                ],
                next=one.next,
            )
    # A required adaptor comes before the others.
    return next((one for one in sorted(found, key=lambda one: not one.required) if one.taken), None)
