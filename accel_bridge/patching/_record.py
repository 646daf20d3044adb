"""Patches as data: the record, its states, and what a patch is given when it is built;
the usual wrappers, and a parameter of the wrapped function by its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from inspect import Parameter, Signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from accel_bridge.errors import PatchError

if TYPE_CHECKING:
    from accel_bridge.patching.host import Host

#: The name of a parameter, or all the names it has had.
Spelling = str | tuple[str, ...]

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def spelled(parameters: Mapping[str, object], spelling: Spelling) -> str | None:
    """The name by which a function with ``parameters`` knows a parameter, or None."""
    names = (spelling,) if isinstance(spelling, str) else spelling
    return next((name for name in names if name in parameters), None)


@dataclass(frozen=True, slots=True)
class Argument:
    """Where one argument stands in a call ``(*args, **kwargs)``.

    :param name: as the wrapped function spells it.
    :param position: counted from 0, ``self`` included; None for a keyword-only parameter.
    :param default: what a call without it means; ``Parameter.empty`` where it must be given.
    """

    name: str
    position: int | None
    default: Any

    @classmethod
    def find(cls, signature: Signature, spelling: Spelling) -> Argument:
        """The argument of that name in calls of a function with ``signature``.

        :raises KeyError: it has no such parameter.
        """
        name = spelled(signature.parameters, spelling)
        if name is None:
            raise KeyError(spelling)
        parameter = signature.parameters[name]
        positions = [p.name for p in signature.parameters.values() if p.kind in _BY_POSITION]
        position = positions.index(name) if name in positions else None
        return cls(name, position, parameter.default)

    def get(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Its value in a call."""
        if self.position is not None and self.position < len(args):
            return args[self.position]
        return kwargs.get(self.name, self.default)

    def put(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with ``value`` in its place."""
        if self.position is not None and self.position < len(args):
            return (*args[: self.position], value, *args[self.position + 1 :]), kwargs
        return args, {**kwargs, self.name: value}


class Kind(str, Enum):
    """How a patch changes its target."""

    #: A new callable takes the target's place. It knows the target's exact parameters.
    REPLACE = "replace"
    #: A new callable reads the parameters in ``uses`` and forwards each call as it came. A function
    #: gets the original's name, documentation and signature.
    WRAP = "wrap"
    #: A value takes the target's place as it is; uses are not counted.
    ATTRIBUTE = "attribute"


class State(str, Enum):
    """Where a patch stands."""

    #: Known; its target's module has not been imported, or the engine is not active.
    REGISTERED = "registered"
    #: In place; not called so far (or not countable, see :attr:`Status.counted`).
    APPLIED = "applied"
    #: In place and called at least once.
    REACHED = "reached"
    #: Was in place and has been undone.
    REVERTED = "reverted"
    #: Deliberately not applied; :attr:`Status.reason` says why.
    SKIPPED = "skipped"
    #: Could not be applied; :attr:`Status.reason` and :attr:`Status.error` say why.
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PatchContext:
    """What :attr:`Patch.make` gets.

    :param original: the object at the target, taken out of its descriptor: the unbound function
        in a ``staticmethod``, ``classmethod`` or ``property``; else the object itself. If an
        earlier patch changed the same target, it is that patch's object.
    :param module: the target's module, fully executed.
    :param owner: the module or class that has the target as an attribute.
    :param host: the engine's host object.
    :param patch: the patch itself.
    :param signature: of the upstream project's own function; None for a patch of kind ATTRIBUTE.
    """

    original: Any
    module: ModuleType
    owner: object
    host: Host
    patch: Patch
    signature: inspect.Signature | None = None

    def argument(self, spelling: Spelling) -> Argument:
        """Where to find a parameter from the patch's ``uses`` in a call.

        :raises PatchError: the patch does not list it in ``uses``.
        """
        if spelling not in self.patch.uses or self.signature is None:
            raise PatchError(
                f"Patch {self.patch.id!r} reads an argument that it does not list in `uses`.",
                evidence=f"argument: {spelling}; uses: {self.patch.uses}",
                next="Add it to `uses`, so that it is verified before the patch is applied.",
            )
        return Argument.find(self.signature, spelling)

    def optional_argument(self, spelling: Spelling) -> Argument | None:
        """Where to find a parameter that not every version has; None where it is missing."""
        known = self.signature is not None and spelled(self.signature.parameters, spelling)
        return Argument.find(self.signature, spelling) if known and self.signature else None


@dataclass(frozen=True, slots=True)
class Shape:
    """What a target looks like in one version of the upstream project.

    :param parameters: parameter names, ``self`` or ``cls`` included; None if the source does not
        show them (a value that is computed when the module is executed).
    :param digest: of the source, see :func:`accel_bridge.patching.source_digest`; None for data.
    :param place: file and line, ``path:line``; empty where the target does not exist.
    :param elsewhere: if it does not exist, places that define something with its name.
    """

    parameters: tuple[str, ...] | None
    digest: str | None
    place: str = ""
    elsewhere: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Shape:
        """The inverse of :meth:`as_json`."""
        parameters = entry.get("parameters")
        return cls(
            None if parameters is None else tuple(parameters),
            entry.get("digest"),
            entry.get("place", ""),
            tuple(entry.get("elsewhere", ())),
        )

    def as_json(self) -> dict[str, object]:
        """The fields that are set."""
        empty = {"elsewhere": (), "place": "", "parameters": None, "digest": None}
        return {name: value for name, value in asdict(self).items() if value != empty[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One change to somebody else's code, and why it exists.

    :param id: short name, as in ``ACCEL_BRIDGE_PATCHES``. Variants of a patch for different
        versions share it; their ``requires`` are disjoint.
    :param target: ``module:qualname``, e.g. ``pkg.mod:function`` or ``pkg.mod:Class.method``.
    :param kind: how the target is changed.
    :param make: builds the new object; called once per execution of the target's module. It uses
        ``context.original`` where it needs the original: names imported from the target's module
        are not the original once the patch is applied.
    :param why: one sentence: why the patch exists.
    :param upstream: where the target is described: a link or a file of the upstream project.
    :param removed_when: the condition under which this patch can be removed.
    :param loses: what does not work without it.
    :param requires: PEP 508 requirement on a distribution, e.g. ``"megatron-core>=0.19,<0.20"``.
    :param elsewhere: why other versions do not need the patch; empty if they would, which is then
        worth a warning.
    :param uses: WRAP: the parameters that the wrapper reads (``context.argument``), each by its
            name, or by all its names if versions differ. All others are forwarded untouched.
    :param parameters: REPLACE: the target's exact parameter names, ``self`` or ``cls`` included as
        declared; for a class those of its ``__init__`` (or, where it has none, ``__new__``).
    :param digest: REPLACE: of the target's source when the patch was written. If the body has
        changed since, this is reported, but the patch is still applied.
    :param expected: what the target looks like, by version; fills in the two parameters above.
    :param armed_when: for a patch that only observes: whether the command that needs it is under
        way. Elsewhere the engine does not know the patch.
    :param skip_when: gets the engine's host; returns the reason to skip, or None.
    :param kernels: kernel contracts the host must offer.
    :param after: ids of patches of the same module that come earlier. It fixes the order only: an
        earlier patch that was skipped or failed does not stop this one.
    :param needs: ids in ``after`` that must be in place; otherwise this patch is skipped.
    :param optional: the target exists in some versions only; if missing, it is a normal skip.
    :raises PatchError: the record contradicts itself.
    """

    id: str
    target: str
    kind: Kind
    make: Callable[[PatchContext], object]
    why: str
    upstream: str
    removed_when: str
    loses: str
    requires: str | None = None
    elsewhere: str = ""
    uses: tuple[Spelling, ...] = ()
    parameters: tuple[str, ...] | None = None
    digest: str | None = None
    expected: Mapping[str, Shape] = field(default_factory=dict)
    armed_when: Callable[[], bool] | None = None
    skip_when: Callable[[Any], str | None] | None = None
    kernels: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    optional: bool = False

    def __post_init__(self) -> None:
        module, colon, qualname = self.target.partition(":")
        parts = [*module.split("."), *qualname.split(".")]
        if not (colon and all(part.isidentifier() for part in parts)):
            raise PatchError(
                f"Patch {self.id!r} has a target that is not module:qualname.",
                evidence=f"target: {self.target!r}",
                next='Write it as "package.module:Class.method".',
            )
        if self.uses and self.kind is not Kind.WRAP:
            raise PatchError(
                f"Patch {self.id!r} lists `uses` but wraps nothing.",
                evidence=f"kind: {self.kind.value}, uses: {self.uses}",
                next="Make its kind WRAP, or leave `uses` out.",
            )
        if not set(self.needs) <= set(self.after):
            raise PatchError(
                f"Patch {self.id!r} lists a patch in `needs` but not in `after`.",
                evidence=f"needs: {', '.join(self.needs)}; after: {', '.join(self.after)}",
                next="List what it needs in `after` too.",
            )
        if self.requires is not None:
            try:
                Requirement(self.requires)
            except InvalidRequirement as error:
                raise PatchError(
                    f"Patch {self.id!r} has a malformed `requires`.",
                    evidence=f"requires: {self.requires!r}: {error}".splitlines()[0],
                    next='Write it as "megatron-core>=0.19,<0.20".',
                ) from error

    @property
    def module(self) -> str:
        """Name of the target's module."""
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        """Dotted name of the target inside its module."""
        return self.target.partition(":")[2]


@dataclass(slots=True)
class Status:
    """What became of one patch.

    :param patch: the patch.
    :param state: where it stands now.
    :param reason: why it was skipped, failed or partly undone, or a note about it; empty if there
        is nothing to say.
    :param error: traceback of the failure, empty without one.
    :param reached: its object was called since it was last applied; kept after the undo.
    :param counted: calls of its object can be noticed. False for values, and for classes that
        cannot be subclassed.
    :param aliases: other places that held the original and were changed too, as
        ``module:qualname``.
    """

    patch: Patch
    state: State = State.REGISTERED
    reason: str = ""
    error: str = ""
    reached: bool = False
    counted: bool = True
    aliases: tuple[str, ...] = ()


Make = Callable[[PatchContext], Callable[..., Any]]


def around(action: Callable[..., Any]) -> Make:
    """``make`` of a WRAP patch: ``action`` in place of the original, which it may call.

    :param action: gets the patch's context, ``call`` and the values of the parameters in ``uses``;
        what it returns is the result. ``call()`` is the original with the call as it came,
        ``call(name=value)`` with another value for a parameter in ``uses``, by its first name.
    """

    def make(context: PatchContext) -> Callable[..., Any]:
        original = context.original
        used = {
            spelling if isinstance(spelling, str) else spelling[0]: context.argument(spelling)
            for spelling in context.patch.uses
        }

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            def call(**changes: Any) -> Any:
                words, named = args, kwargs
                for name, value in changes.items():
                    words, named = used[name].put(words, named, value)
                return original(*words, **named)

            return action(context, call, *(one.get(args, kwargs) for one in used.values()))

        return wrapper

    return make


def before(action: Callable[..., None]) -> Make:
    """``make`` of a WRAP patch: ``action``, then the original with the call as it came.

    :param action: gets the patch's context and the values of the parameters in ``uses``.
    """

    def act_then_call(context: PatchContext, call: Callable[[], Any], *used: Any) -> Any:
        action(context, *used)
        return call()

    return around(act_then_call)


def after(action: Callable[..., None]) -> Make:
    """``make`` of a WRAP patch: the original with the call as it came, then ``action``.

    :param action: gets the patch's context, the result, which is returned, and the values of the
        parameters in ``uses``.
    """

    def call_then_act(context: PatchContext, call: Callable[[], Any], *used: Any) -> Any:
        result = call()
        action(context, result, *used)
        return result

    return around(call_then_act)
