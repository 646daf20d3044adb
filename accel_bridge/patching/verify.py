"""Checks before a patch is applied: signatures, bodies, and what callers pass."""

from __future__ import annotations

import functools
import inspect
from inspect import Parameter
from typing import Any

from accel_bridge.patching._record import Kind, Patch, spelled
from accel_bridge.patching.source import digest_of
from accel_bridge.patching.target import HOLDERS, Refusal, Target, describe, unwrap

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def check_target(patch: Patch, target: Target, upstream: Any) -> None:
    """Check that the target is of the expected kind and has the expected parameters.

    :param upstream: the upstream project's own object, below any earlier patch.
    :raises Refusal: it is not.
    """
    if target.name == "__new__" and not isinstance(target.raw, staticmethod):
        # CPython never resets the slot: after the undo, calls with arguments would be refused.
        raise Refusal(f"{patch.target} belongs to a built-in class; patch __init__ instead")
    if patch.kind is not Kind.ATTRIBUTE:
        if not callable(upstream):
            raise Refusal(f"{patch.target} is a {type(upstream).__name__}, which cannot be called")
        plain = isinstance(target.raw, (*HOLDERS, type)) or hasattr(type(target.raw), "__get__")
        if isinstance(target.owner, type) and not plain:
            raise Refusal(
                f"{patch.target} is an instance of {describe(type(target.raw))}, not a method;"
                " patch it with kind ATTRIBUTE"
            )
    if patch.kind is Kind.REPLACE:
        if patch.parameters is None:
            raise Refusal(f"it replaces {patch.target} but does not pin its parameters")
        found = tuple(signature(upstream).parameters)
        if found != patch.parameters:
            raise Refusal(
                f"the signature of {patch.target} is not the expected one:"
                f" ({', '.join(found)}) instead of ({', '.join(patch.parameters)})"
            )
    if patch.kind is Kind.WRAP:
        parameters = signature(upstream).parameters
        missing = [str(name) for name in patch.uses if spelled(parameters, name) is None]
        if missing:
            raise Refusal(
                f"{patch.target} has no parameter {', '.join(missing)}:"
                f" its signature is ({', '.join(parameters)})"
            )


def changed_body(patch: Patch, upstream: Any) -> str:
    """A note if the body of a replaced function has changed; empty if it is the same."""
    pinned = patch.digest if patch.kind is Kind.REPLACE else None
    if pinned is None or digest_of(upstream) in (None, pinned):
        return ""
    return "the upstream body has changed since the patch was written"


def check_new(target: Target, upstream: Any, new: Any) -> None:
    """Check that ``new`` can replace the original and accepts what its callers pass.

    :raises Refusal: it cannot.
    """
    inner = unwrap(new)
    if isinstance(new, HOLDERS) and type(new) is not type(target.raw):
        raise Refusal(f"make returned a {type(new).__name__} for a {type(target.raw).__name__}")
    if inner is target.original:
        raise Refusal("make returned the original object")
    if not callable(inner):
        raise Refusal(f"make returned a {type(inner).__name__}, which cannot be called")
    if isinstance(upstream, type) and not isinstance(inner, type):
        raise Refusal(f"make returned {describe(inner)}, not a class, for a class")
    holder = isinstance(target.raw, HOLDERS)
    # A partial has __get__ from Python 3.13 on and binds from 3.14 on.
    binds = hasattr(type(inner), "__get__") and not isinstance(inner, functools.partial)
    if target.is_method and not holder and not binds:
        raise Refusal(f"make returned {describe(inner)}, which does not bind as a method")
    bound = target.is_method or isinstance(upstream, type)
    for follow in (False, True):
        reason = refused_call(
            signature(upstream), signature(inner, follow_wrapped=follow), bound=bound
        )
        if reason:
            raise Refusal(f"the new object does not accept what callers pass: {reason}")


def signature(function: Any, *, follow_wrapped: bool = True) -> inspect.Signature:
    """The signature of a function as declared, or of the constructor of a class.

    :raises Refusal: it cannot be read.
    """
    declared = function
    if isinstance(function, type):
        declared = constructor(function)
        if declared is None:
            return inspect.Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)])
    try:
        return inspect.signature(declared, follow_wrapped=follow_wrapped)
    except (ValueError, TypeError) as error:
        raise Refusal(f"the signature of {describe(function)} cannot be read: {error}") from error


def constructor(cls: type) -> Any:
    """The function behind ``cls(...)``: ``__init__``, else ``__new__``, else None."""
    if cls.__init__ is not object.__init__:  # type: ignore[misc]  # only looked at
        return cls.__init__  # type: ignore[misc]
    new: Any = cls.__new__
    return None if new is object.__new__ else new


def refused_call(original: inspect.Signature, new: inspect.Signature, *, bound: bool) -> str | None:
    """What callers of ``original`` may pass but ``new`` does not accept; None if nothing.

    :param bound: the first parameter is ``self`` or ``cls``, which no caller passes by name.
    """
    ours = list(new.parameters.values())
    positional = [p for p in ours if p.kind in _POSITIONAL]
    by_name = {p.name: p for p in ours if p.kind in _BY_NAME}
    any_positional = any(p.kind is Parameter.VAR_POSITIONAL for p in ours)
    any_name = any(p.kind is Parameter.VAR_KEYWORD for p in ours)
    fed: set[str] = set()

    for index, theirs in enumerate(original.parameters.values()):
        if theirs.kind is Parameter.VAR_POSITIONAL:
            if not any_positional:
                return f"*{theirs.name}"
            continue
        if theirs.kind is Parameter.VAR_KEYWORD:
            if not any_name:
                return f"**{theirs.name}"
            continue
        nameless = theirs.kind is Parameter.POSITIONAL_ONLY or (bound and index == 0)
        takers: list[Parameter] = []
        if theirs.kind in _POSITIONAL:
            if index < len(positional):
                takers.append(positional[index])
            elif not any_positional:
                return f"{theirs.name} as positional argument {index + 1}"
        if not nameless:
            if theirs.name in by_name:
                takers.append(by_name[theirs.name])
            elif not any_name:
                return f"{theirs.name} by its name"
        if len({p.name for p in takers}) > 1:
            return f"{theirs.name} as positional argument {index + 1}: {takers[0].name} is there"
        fed |= {p.name for p in takers}
        if theirs.default is not Parameter.empty and any(
            p.default is Parameter.empty for p in takers
        ):
            return f"a call without {theirs.name}"

    for mine in ours:
        required = mine.kind in (*_POSITIONAL, Parameter.KEYWORD_ONLY)
        if required and mine.default is Parameter.empty and mine.name not in fed:
            return f"a call without {mine.name}, which the original does not have"
    return None
