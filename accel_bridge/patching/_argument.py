"""One parameter of a wrapped function, found in the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

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
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The call's arguments with ``value`` in its place."""
        if self.position is not None and self.position < len(args):
            return (*args[: self.position], value, *args[self.position + 1 :]), kwargs
        return args, {**kwargs, self.name: value}
