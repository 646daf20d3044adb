"""Named states of the device's random generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from accel_bridge.kernels.active import features

_all: Mapping[str, Any] = {}


def get_all_rng_states() -> Mapping[str, Any]:
    """The states of the tracker that was last added to, by name."""
    return _all


def set_all_rng_states(states: Mapping[str, Any]) -> None:
    """Make ``states`` what :func:`get_all_rng_states` returns."""
    global _all
    _all = states


def graph_safe_rng_available() -> bool:
    """Whether states are generators that captured graphs can register."""
    return features().cuda_graphs and hasattr(torch.cuda.CUDAGraph, "register_generator_state")


def is_graph_safe_rng_state(state: object) -> bool:
    """Whether the state is a generator, not a tensor."""
    return isinstance(state, torch.Generator)


def get_device_state(clone: bool = False, graph_safe: bool = True) -> Any:
    """State of the device's default generator.

    :param clone: a generator of its own, instead of one that shares the default's state.
    :param graph_safe: as a generator where that is possible; else as a tensor.
    """
    if not (graph_safe and graph_safe_rng_available()):
        return torch.cuda.get_rng_state()
    generator = _default_generator()
    return generator.clone_state() if clone else generator.graphsafe_get_state()


def set_device_state(state: Any) -> None:
    """Set the state of the device's default generator."""
    if is_graph_safe_rng_state(state):
        _default_generator().graphsafe_set_state(state)
    else:
        torch.cuda.set_rng_state(state)


def _default_generator() -> Any:
    device = torch.cuda.current_device()  # initialises the device, which makes its generators
    return torch.cuda.default_generators[device]


class CudaRNGStatesTracker:
    """States of the device's random generator by name, for model parallelism."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all states."""
        self.states_ = {}
        self.seeds_ = set()

    def get_states(self) -> dict[str, Any]:
        """The states by name, in a new dict."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        """Replace all states."""
        self.states_ = states
        set_all_rng_states(states)

    def add(self, name: str, seed: int) -> None:
        """Add a state.

        :raises RuntimeError: the seed or the name was added before.
        """
        if seed in self.seeds_:
            raise RuntimeError(f"seed {seed} already exists")
        self.seeds_.add(seed)
        if name in self.states_:
            raise RuntimeError(f"cuda rng state {name} already exists")
        if graph_safe_rng_available():
            state = get_device_state(clone=True)
            state.manual_seed(seed)
        else:
            before = torch.cuda.get_rng_state()
            torch.cuda.manual_seed(seed)
            state = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)
        self.states_[name] = state
        set_all_rng_states(self.states_)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Draw from the state ``name`` inside of the context.

        :raises KeyError: no such state.
        """
        if name not in self.states_:
            raise KeyError(f"cuda rng state {name} is not added")
        before = get_device_state()
        set_device_state(self.states_[name])
        try:
            yield
        finally:
            # A generator has kept its own state; a tensor is a copy.
            if not is_graph_safe_rng_state(self.states_[name]):
                self.states_[name] = get_device_state(graph_safe=False)
            set_device_state(before)
