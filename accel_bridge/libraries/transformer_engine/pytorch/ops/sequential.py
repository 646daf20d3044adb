"""A container for modules that runs neighbouring operations as one chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .fuser import OperationFuser
from .op import FusibleOperation


class Sequential(torch.nn.Module):
    """``torch.nn.Sequential``, with operations that take and return extra tensors.

    :param args: modules, or one dict of them by name.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        # Made by the first forward pass after a change.
        self._module_groups: list[Any] | None = None
        if len(args) == 1 and isinstance(args[0], dict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            self.extend(args)

    def add_module(self, name: str, module: torch.nn.Module | None) -> None:
        """Add ``module`` under ``name``, at the end."""
        self._module_groups = None
        super().add_module(name, module)

    def _get_keys_by_idx(self, idx: int | slice) -> list[str]:
        keys = list(self._modules)
        if isinstance(idx, slice):
            return keys[idx]
        if not -len(keys) <= idx < len(keys):
            raise IndexError(f"Attempted to access index {idx}, but there are {len(keys)} entries")
        return [keys[idx]]

    def _next_key(self) -> str:
        numbers = [int(key) for key in self._modules if key.lstrip("-").isdigit()]
        return str(max(numbers, default=-1) + 1)

    def __getitem__(self, idx: int | slice) -> Any:
        keys = self._get_keys_by_idx(idx)
        if isinstance(idx, slice):
            return Sequential().extend(self._present(keys))
        return self._modules[keys[0]]

    def __setitem__(self, idx: int, module: torch.nn.Module) -> None:
        self._module_groups = None
        self._modules[self._get_keys_by_idx(idx)[0]] = module

    def __delitem__(self, idx: int | slice) -> None:
        self._module_groups = None
        for key in self._get_keys_by_idx(idx):
            del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter(self._present(self._modules))

    def _present(self, keys: Iterable[str]) -> list[torch.nn.Module]:
        modules = [self._modules[key] for key in keys]
        return [module for module in modules if module is not None]

    def append(self, module: torch.nn.Module) -> Sequential:
        """Add a module at the end."""
        self.add_module(self._next_key(), module)
        return self

    def extend(self, modules: Iterable[torch.nn.Module]) -> Sequential:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, idx: int, module: torch.nn.Module) -> Sequential:
        """Add a module before the one at ``idx``."""
        self._module_groups = None
        keys = [*self._get_keys_by_idx(slice(idx, None)), self._next_key()]
        for key, before in zip(keys[:0:-1], keys[-2::-1], strict=True):
            self._modules[key] = self._modules[before]
        self._modules[keys[0]] = module
        return self

    def pop(self, idx: int | slice) -> Any:
        """Remove and return a module, or several."""
        found = self[idx]
        del self[idx]
        return found

    def __iadd__(self, modules: Iterable[torch.nn.Module]) -> Sequential:
        return self.extend(modules)

    def __add__(self, modules: Iterable[torch.nn.Module]) -> Sequential:
        return Sequential().extend(self).extend(modules)

    @classmethod
    def _make_module_groups(cls, modules: Iterable[torch.nn.Module | None]) -> list[Any]:
        """The modules, each run of operations as one chain."""
        groups: list[Any] = []
        for module in modules:
            if not isinstance(module, FusibleOperation):
                groups.append(module)
            elif groups and isinstance(groups[-1], list):
                groups[-1].append(module)
            else:
                groups.append([module])
        return [OperationFuser(group) if isinstance(group, list) else group for group in groups]

    def forward(self, input: torch.Tensor, *extra_inputs: torch.Tensor) -> Any:
        """Run the modules; chains take their extra inputs in order.

        :returns: the output, followed by extra outputs where operations make some.
        """
        if self._module_groups is None:
            self._module_groups = self._make_module_groups(self._modules.values())
        x: Any = input
        extra_outputs: list[torch.Tensor] = []
        for group in self._module_groups:
            if not isinstance(group, OperationFuser):
                x = group(x)
                continue
            count = group.num_extra_inputs
            x = group(x, *extra_inputs[:count])
            extra_inputs = extra_inputs[count:]
            if isinstance(x, tuple):
                x, *made = x
                extra_outputs.extend(made)
        return (x, *extra_outputs) if extra_outputs else x
