"""What every public name of torch.cuda and torch.accelerator does on a device that is not CUDA.

The table of docs/device.md is made from this. A test holds it against torch: no name is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Names:
    """Names that share an answer.

    :param names: as they stand in the module's ``__all__``.
    :param does: what they do on the CPU.
    :param why: the reason.
    """

    names: tuple[str, ...]
    does: str
    why: str


def _of(names: str, does: str, why: str) -> Names:
    return Names(tuple(names.split()), does, why)


CUDA: Final = (
    _of("is_available is_initialized init", "true; nothing to do", "a script goes its CUDA way"),
    _of(
        "device_count current_device set_device device device_of can_device_access_peer",
        "one device for each process that the launcher starts here; numbers are checked and kept",
        "every rank of a script has the device that it asks for, and a wrong number is an error",
    ),
    _of(
        "get_device_name get_device_properties get_device_capability get_arch_list "
        "get_gencode_flags is_bf16_supported is_tf32_supported has_half has_magma",
        "`CPU (accel_bridge)`, the cores and half of the memory; capability 8.0; no architectures",
        "scripts size tensors by the memory, choose a platform by a vendor in the name, and take "
        "bfloat16 but nothing newer by the capability",
    ),
    _of(
        "synchronize current_stream default_stream set_stream stream Stream StreamContext Event "
        "ExternalStream get_stream_from_external streams",
        "one stream that is always done; events take the time",
        "the host computes in order",
    ),
    _of(
        "manual_seed manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state "
        "get_rng_state_all set_rng_state_all default_generators random",
        "`torch.default_generator`, so `torch.cuda.manual_seed` seeds `torch.rand(2)` too; "
        "samplers and DataLoaders draw from a generator of the host's own",
        "operations cannot tell sides, and a program without a device draws what it always drew",
    ),
    _of(
        "memory_allocated memory_reserved memory_cached max_memory_allocated max_memory_reserved "
        "max_memory_cached memory_stats memory_summary mem_get_info "
        "device_memory_used memory_usage reset_peak_memory_stats reset_max_memory_allocated "
        "reset_max_memory_cached reset_accumulated_memory_stats memory",
        "resident memory of the process, and its peak",
        "the host's allocator does not count tensors",
    ),
    _of(
        "empty_cache ipc_collect host_memory_stats_as_nested_dict reset_peak_host_memory_stats "
        "reset_accumulated_host_memory_stats memory_snapshot",
        "nothing; statistics are empty",
        "there is no cache, and no second allocator",
    ),
    _of(
        "utilization temperature power_draw clock_rate",
        "load of the machine in percent; the others 0",
        "logs of a training read them",
    ),
    _of(
        "FloatTensor DoubleTensor HalfTensor BFloat16Tensor IntTensor LongTensor ShortTensor "
        "CharTensor ByteTensor BoolTensor",
        "make tensors on the device; `isinstance` asks for dtype and side",
        "old scripts make their tensors so",
    ),
    _of(
        "FloatStorage DoubleStorage HalfStorage BFloat16Storage IntStorage LongStorage "
        "ShortStorage CharStorage ByteStorage BoolStorage ComplexFloatStorage "
        "ComplexDoubleStorage",
        "left alone: they stop, as without CUDA",
        "PyTorch has deprecated them",
    ),
    _of(
        "CUDAGraph graph make_graphed_callables graph_pool_handle graphs graph_annotations "
        "export_graph_data export_dot GreenContext MemPool "
        "use_mem_pool CUDAPluggableAllocator change_current_allocator get_allocator_backend "
        "set_per_process_memory_fraction get_per_process_memory_fraction host_memory_stats "
        "memory_stats_as_nested_dict current_blas_handle",
        "stop by name where they are used",
        "the host captures nothing, and has neither CUDA's allocator nor its libraries",
    ),
    _of(
        "is_current_stream_capturing get_sync_debug_mode set_sync_debug_mode check_error cudart",
        "neutral answers: not capturing, mode 0, no error",
        "libraries ask before they take a way of their own",
    ),
    _of(
        "amp nvtx profiler",
        "autocast of the device; annotations and switches that do nothing",
        "there is no CUDA profiler to read them",
    ),
    _of(
        "caching_allocator_alloc caching_allocator_delete caching_allocator_disabled "
        "caching_allocator_enable current_solver_handle list_gpu_processes "
        "jiterator nccl sparse tunable cudaStatus CudaError DeferredCudaCallError",
        "left alone: what needs the CUDA library stops in torch's own words",
        "a script that reads them wants NVIDIA's library itself",
    ),
)
ACCELERATOR: Final = (
    _of(
        "is_available device_count current_device_index current_device_idx set_device_index "
        "set_device_idx synchronize current_stream set_stream memory_allocated memory_reserved "
        "max_memory_allocated max_memory_reserved memory_stats get_memory_info "
        "reset_peak_memory_stats reset_accumulated_memory_stats empty_cache",
        "the answer of torch.cuda",
        "the two must not contradict each other",
    ),
    _of("current_accelerator", '`torch.device("cuda")`', "tensors made there are the device's"),
    _of("empty_host_cache", "nothing", "there is no cache of page-locked memory"),
    _of(
        "Graph device_index get_device_capability",
        "left alone: they stop in torch's own words",
        "they need an accelerator that torch was compiled for",
    ),
)
#: Attributes of tensors and modules with an answer of their own.
TENSORS: Final = (
    _of("device", "`cpu` on both sides", "it is what torch has; the object tells the side"),
    _of(
        "is_cuda",
        "false for what was made on the host, true otherwise",
        "the result of an operation is taken to be on the device",
    ),
    _of(
        "__cuda_array_interface__",
        "AttributeError",
        "it promises an address that CUDA can read",
    ),
    _of(
        "pin_memory is_pinned",
        "a copy on the host that says it is page-locked",
        "CUDA copies there too",
    ),
    _of(
        "nn.DataParallel nn.parallel.data_parallel",
        "run the module itself, on one device",
        "all devices of a process are the one host",
    ),
)
