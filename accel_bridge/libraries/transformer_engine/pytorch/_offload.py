"""Tensors that wait on the host between the forward and the backward pass, layer by layer.

Copies run on a stream of their own. A layer's tensors go through these states: collected
(``not_offloaded``), copied to the host (``offload_started``), freed on the device
(``offload_finished``), copied back (``reload_started``).

Source of the semantics: transformer_engine/pytorch/cpu_offload.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

import torch

from .quantized_tensor import QuantizedTensor

#: Tensors with fewer elements stay.
SMALLEST: Final = 256 * 1024
#: A slice of a larger tensor moves with it, if that is at most so many times as large.
_SHARE: Final = 4
#: Attributes of tensors: never to be moved; finished at this event; a view to be moved whole.
KEEP: Final = "_TE_do_not_offload"
READY: Final = "start_reload_event"
WHOLE: Final = "offload_base_tensor"


@dataclass
class _Entry:
    """One tensor to move: the memory that is copied, and where the tensor lies in it."""

    source: torch.Tensor | None
    ready: Any
    host: torch.Tensor | None = None
    back: torch.Tensor | None = None
    arrived: Any = None


@dataclass(frozen=True)
class _View:
    """What was pushed: an entry, and the view of it (None for all of it)."""

    entry: int
    layout: tuple[Any, ...] | None


class OffloadableLayerState:
    """The saved tensors of one layer.

    :param offload_stream: where copies run.
    :param retain_pinned_cpu_buffers: use the same memory of the host in every iteration.
    :param smallest: tensors with fewer elements stay; default: :data:`SMALLEST`.
    """

    def __init__(
        self,
        offload_stream: Any,
        retain_pinned_cpu_buffers: bool = False,
        smallest: int | None = None,
    ) -> None:
        self.offload_stream = offload_stream
        self.smallest = SMALLEST if smallest is None else smallest
        self.retain_pinned_cpu_buffers = retain_pinned_cpu_buffers
        self.state = "not_offloaded"
        self._entries: list[_Entry] = []
        self._places: dict[Any, int] = {}
        self._views: list[_View] = []
        self._kept: list[torch.Tensor] = []
        self._finished: Any = None

    def _expect(self, *states: str) -> None:
        assert self.state in states, f"Invalid state: {self.state}, must be one of {states}"

    def push_tensor(self, tensor: Any) -> Any:
        """What stands for a saved tensor: itself, a number, or the parts of an FP8 tensor."""
        self._expect("not_offloaded")
        if tensor.numel() < self.smallest or _stays(tensor):
            return tensor
        if isinstance(tensor, QuantizedTensor):
            parts, owner = tensor.detach().prepare_for_saving()  # type: ignore[attr-defined]
            return [None if part is None else self.push_tensor(part) for part in parts], owner
        source, layout = tensor, None
        base = tensor._base
        if base is not None and self._moves_whole(tensor, base):
            offset = tensor.storage_offset() - base.storage_offset()
            source, layout = base, (tensor.shape, tensor.stride(), offset)
        if not _is_dense(source):
            warnings.warn(
                "Tried to offload non-contiguous tensor, which is not supported. Offload of this "
                "tensor will be skipped.",
                stacklevel=2,
            )
            return tensor
        key = _memory(source)
        if key not in self._places:
            ready = getattr(tensor, READY, None)
            if ready is None:
                ready = torch.cuda.Event()
                ready.record(torch.cuda.current_stream())
            self._places[key] = len(self._entries)
            self._entries.append(_Entry(source, ready))
        elif layout is None:
            layout = (tensor.shape, tensor.stride(), 0)
        self._views.append(_View(self._places[key], layout))
        return len(self._views) - 1

    def _moves_whole(self, tensor: torch.Tensor, base: torch.Tensor) -> bool:
        """Whether a view moves with the tensor that it is a view of, as queries, keys and values do
        with what they are slices of."""
        if getattr(tensor, WHOLE, False) or base.numel() == tensor.numel():
            return True
        if _is_dense(tensor) or not _is_dense(base):
            return False
        return _memory(base) in self._places or base.numel() <= _SHARE * tensor.numel()

    def start_offload(self) -> None:
        """Begin the copies to the host."""
        self._expect("not_offloaded")
        self.state = "offload_started"
        for index, entry in enumerate(self._entries):
            source = entry.source
            assert source is not None
            self.offload_stream.wait_event(entry.ready)
            with torch.cuda.stream(self.offload_stream):
                entry.host = self._buffer(index, source)
                entry.host.copy_(source, non_blocking=True)
        self._finished = torch.cuda.Event()
        self._finished.record(self.offload_stream)

    def _buffer(self, index: int, source: torch.Tensor) -> torch.Tensor:
        if index < len(self._kept):
            buffer = self._kept[index]
            assert buffer.shape == source.shape, (
                "CPU buffer shape does not match the offloaded tensor shape: "
                f"{buffer.shape} != {source.shape}. Make sure that tensor shapes do not change "
                "between iterations if retain_pinned_cpu_buffers is True."
            )
            return buffer
        pinned = source.device.type != "cpu"
        buffer = torch.empty_like(source, device=torch.device("cpu"), pin_memory=pinned)
        if self.retain_pinned_cpu_buffers:
            self._kept.append(buffer)
        return buffer

    def release_activation_forward_gpu_memory(self) -> None:
        """Free the device's memory as soon as the copies are done."""
        self._expect("offload_started")
        self.state = "offload_finished"
        torch.cuda.current_stream().wait_event(self._finished)
        self._finished = None
        self._places.clear()
        for entry in self._entries:
            entry.source = entry.ready = None

    def start_reload(self) -> None:
        """Begin the copies back to the device."""
        self._expect("offload_finished")
        self.state = "reload_started"
        for entry in self._entries:
            assert entry.host is not None
            # The memory belongs to the stream that uses it.
            entry.back = torch.empty_like(entry.host, device=torch.device("cuda"))
            self.offload_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.offload_stream):
                entry.back.copy_(entry.host, non_blocking=True)
            entry.arrived = torch.cuda.Event()
            entry.arrived.record(self.offload_stream)

    def pop_tensor(self, tensor_or_tensor_id: Any) -> Any:
        """The tensor that :meth:`push_tensor` returned this for."""
        self._expect("not_offloaded", "reload_started")
        if isinstance(tensor_or_tensor_id, torch.Tensor):
            return tensor_or_tensor_id
        if isinstance(tensor_or_tensor_id, tuple):
            pushed, owner = tensor_or_tensor_id
            owner.restore_from_saved(
                [None if part is None else self.pop_tensor(part) for part in pushed]
            )
            return owner
        view = self._views[tensor_or_tensor_id]
        entry = self._entries[view.entry]
        memory = entry.source
        if self.state == "reload_started":
            torch.cuda.current_stream().wait_event(entry.arrived)
            memory = entry.back
        assert memory is not None
        if view.layout is None:
            return memory
        shape, stride, offset = view.layout
        return memory.as_strided(shape, stride, memory.storage_offset() + offset)

    def release_all_memory(self) -> None:
        """Forget everything: the backward pass is over."""
        self._entries.clear()
        self._places.clear()
        self._views.clear()
        self.state = "not_offloaded"

    def get_offloaded_total_size_mb(self) -> float:
        """Memory of the host that holds tensors, in MiB."""
        held = [entry.host for entry in self._entries if entry.host is not None]
        return sum(tensor.nbytes for tensor in held) / 2**20


def _stays(tensor: Any) -> bool:
    """Parameters, what was marked so, views of either, and what has no memory."""
    if isinstance(tensor, torch._subclasses.FakeTensor):
        return True
    return any(
        isinstance(one, torch.nn.Parameter) or getattr(one, KEEP, False)
        for one in (tensor, tensor._base)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie side by side, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _memory(tensor: torch.Tensor) -> Any:
    """What dense tensors of the same elements share; the graph's own copies of them, too."""
    return tensor.data_ptr(), tensor.numel(), tensor.dtype


class OffloadSynchronizer:
    """Numbers the layers of a forward and a backward pass; moves nothing by itself.

    :param num_layers: layers of one forward pass.
    """

    def __init__(
        self,
        num_layers: int,
        retain_pinned_cpu_buffers: bool = False,
        offload_stream: Any = None,
        smallest: int | None = None,
    ) -> None:
        self.num_layers = num_layers
        self.offload_stream = torch.cuda.Stream() if offload_stream is None else offload_stream
        self.layer_states = {
            layer: OffloadableLayerState(self.offload_stream, retain_pinned_cpu_buffers, smallest)
            for layer in range(num_layers)
        }
        self.num_of_fwds: int | None = None
        self.previous_bwd_layer_id: int | None = None
        self.current_layer_id: int = 0

    def fwd_step(self) -> int:
        """Called before each layer's forward pass; returns the layer's number."""
        if self.num_of_fwds is None or self.num_of_fwds == self.num_layers - 1:
            for state in self.layer_states.values():
                state.release_all_memory()
            self.num_of_fwds = 0
        else:
            self.num_of_fwds += 1
        self.current_layer_id = self.num_of_fwds
        return self.current_layer_id

    def bwd_step(self, layer_num: int) -> None:
        """Called before each layer's backward pass."""
        self.finish_part_of_bwd()
        self.previous_bwd_layer_id = self.current_layer_id = layer_num

    def push_tensor(self, tensor: Any) -> Any:
        """For the layer of the current forward pass."""
        assert self.num_of_fwds is not None
        return self.layer_states[self.num_of_fwds].push_tensor(tensor)

    def pop_tensor(self, tensor_or_tensor_id: Any) -> Any:
        """For the layer of the current backward pass."""
        return self.layer_states[self.current_layer_id].pop_tensor(tensor_or_tensor_id)

    def finish_part_of_bwd(self) -> None:
        """Free the last layer's memory; called at the end of each backward pass as well."""
        if self.previous_bwd_layer_id is not None:
            self.layer_states[self.previous_bwd_layer_id].release_all_memory()
        self.previous_bwd_layer_id = None

    def get_offloaded_total_size_mb(self) -> float:
        """Memory of the host that holds tensors, in MiB."""
        return sum(state.get_offloaded_total_size_mb() for state in self.layer_states.values())


class DefaultOffloadSynchronizer(OffloadSynchronizer):
    """Moves the first layers, such that the rest's number of layers is what the device holds.

    A layer's copy to the host ends, and its copy back begins, as many layers later as stay on the
    device.

    :param num_offloaded_layers: layers that are moved.
    """

    def __init__(
        self,
        num_layers: int,
        num_offloaded_layers: int = 0,
        retain_pinned_cpu_buffers: bool = False,
        offload_stream: Any = None,
        smallest: int | None = None,
    ) -> None:
        super().__init__(num_layers, retain_pinned_cpu_buffers, offload_stream, smallest)
        stay = num_layers - num_offloaded_layers
        self.offload_layer_map = {
            layer: layer < num_offloaded_layers for layer in range(num_layers)
        }
        self.finish_offload_map: defaultdict[int, list[int]] = defaultdict(list)
        self.start_reload_map: defaultdict[int, list[int]] = defaultdict(list)
        for layer in range(num_offloaded_layers):
            self.finish_offload_map[stay + layer].append(layer)
            self.start_reload_map[stay - 1 + layer].append(layer)

    def fwd_step(self) -> int:
        """See the base class; begins and ends copies to the host."""
        layer = super().fwd_step()
        if self.offload_layer_map.get(layer - 1, False):
            self.layer_states[layer - 1].start_offload()
        for other in self.finish_offload_map[layer]:
            self.layer_states[other].release_activation_forward_gpu_memory()
        return layer

    def bwd_step(self, layer_num: int) -> None:
        """See the base class; begins copies back."""
        super().bwd_step(layer_num)
        for layer in self.start_reload_map[layer_num]:
            self.layer_states[layer].start_reload()

    def push_tensor(self, tensor: Any) -> Any:
        """See the base class; a layer that stays keeps its tensors."""
        assert self.num_of_fwds is not None
        return super().push_tensor(tensor) if self.offload_layer_map[self.num_of_fwds] else tensor


class ManualOffloadSynchronizer(OffloadSynchronizer):
    """Moves layers when it is told to."""

    def start_offload_layer(self, layer_id: int) -> None:
        """Begin a layer's copies to the host."""
        self.layer_states[layer_id].start_offload()

    def release_activation_forward_gpu_memory(self, layer_id: int) -> None:
        """Free the device's memory of a layer as soon as its copies are done."""
        self.layer_states[layer_id].release_activation_forward_gpu_memory()

    def start_reload_layer(self, layer_id: int) -> None:
        """Begin a layer's copies back to the device."""
        self.layer_states[layer_id].start_reload()
