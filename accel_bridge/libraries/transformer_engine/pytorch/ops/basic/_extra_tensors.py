"""Operations with extra inputs or outputs."""

from __future__ import annotations

from typing import Any, NoReturn

from ..op import FusibleOperation


class ExtraTensors(FusibleOperation):
    """Its forward and backward pass are those that the chain calls."""

    num_extra_inputs: int = 0
    num_extra_outputs: int = 0

    def _refuse(self, instead: str) -> NoReturn:
        raise RuntimeError(
            f"{type(self).__name__} has {self.num_extra_inputs} extra inputs and "
            f"{self.num_extra_outputs} extra outputs: it overrides `{instead}`"
        )

    def op_forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """:raises RuntimeError: always."""
        self._refuse("fuser_forward")

    def op_backward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """:raises RuntimeError: always."""
        self._refuse("fuser_backward")
