"""An FP8 GEMM of cuBLASLt that adds to float32 sums, which no operator of torch does.

Legend: m rows, n columns, k the size that a GEMM sums over.
Source: cublasLt.h and library_types.h of CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

_POINTER = ctypes.c_void_p
#: cudaDataType_t of what such a GEMM reads and writes.
_TYPES: Final = {torch.float32: 0, torch.float8_e4m3fn: 28, torch.float8_e5m2: 29}
#: CUBLAS_COMPUTE_32F and CUBLAS_OP_T.
_COMPUTE, _TRANSPOSE = 68, 1
#: CUBLASLT_MATMUL_DESC_: TRANSA, A_SCALE_POINTER, B_SCALE_POINTER, A_SCALE_MODE, B_SCALE_MODE.
_TRANSA, _A_SCALE, _B_SCALE, _A_MODE, _B_MODE = 3, 17, 18, 31, 32
#: CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: a number for each 128 of a row; CUDA 12.9 has it.
_BY_BLOCK: Final = 4
#: CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, and the workspace that Hopper's kernels want.
_MAX_WORKSPACE, _WORKSPACE = 1, 32 * 2**20
#: What sizes are multiples of, and the bytes that operands begin at multiples of.
_MULTIPLE: Final = 16
_ZERO, _ONE = ctypes.byref(ctypes.c_float(0.0)), ctypes.byref(ctypes.c_float(1.0))


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Plan(NamedTuple):
    """How a shape is multiplied: layouts of both operands and of the sums, and the algorithm."""

    a: ctypes.c_void_p
    b: ctypes.c_void_p
    sums: ctypes.c_void_p
    heuristic: _Heuristic


@cache
def _library() -> Any:
    """The library that torch has loaded, or None."""
    major = (torch.version.cuda or "0").partition(".")[0]
    try:
        return ctypes.CDLL(f"libcublasLt.so.{major}")
    except OSError:
        return None


def _call(name: str, *arguments: object) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} of cuBLASLt ended with status {status}")


def _set(kind: str, descriptor: ctypes.c_void_p, attribute: int, value: object) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))  # type: ignore[arg-type]
    _call(f"cublasLtMatmul{kind}SetAttribute", descriptor, attribute, ctypes.byref(value), size)  # type: ignore[arg-type]


def _layout(dtype: torch.dtype, rows: int, columns: int) -> ctypes.c_void_p:
    """Of a contiguous matrix, which a column-major library sees transposed."""
    made = _POINTER()
    sizes = ctypes.c_uint64(columns), ctypes.c_uint64(rows), ctypes.c_int64(columns)
    _call("cublasLtMatrixLayoutCreate", ctypes.byref(made), _TYPES[dtype], *sizes)
    return made


def _description(a_scale_inv: int, b_scale_inv: int, by_block: bool) -> ctypes.c_void_p:
    """Of a GEMM whose first operand is ``b``: its rows are the library's columns."""
    made = _POINTER()
    _call("cublasLtMatmulDescCreate", ctypes.byref(made), _COMPUTE, _TYPES[torch.float32])
    _set("Desc", made, _TRANSA, ctypes.c_int(_TRANSPOSE))
    _set("Desc", made, _A_SCALE, _POINTER(b_scale_inv))
    _set("Desc", made, _B_SCALE, _POINTER(a_scale_inv))
    for mode in (_A_MODE, _B_MODE) if by_block else ():
        _set("Desc", made, mode, ctypes.c_int(_BY_BLOCK))
    return made


@lru_cache(maxsize=256)
def _plan(
    m: int, n: int, k: int, a: torch.dtype, b: torch.dtype, by_block: bool, _device: torch.device
) -> _Plan | None:
    """None where the library has no kernel."""
    layouts = _layout(a, m, k), _layout(b, n, k), _layout(torch.float32, m, n)
    preference, found, count = _POINTER(), _Heuristic(), ctypes.c_int()
    description = _description(_MULTIPLE, _MULTIPLE, by_block)  # only their alignment matters here
    _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
    _set("Preference", preference, _MAX_WORKSPACE, ctypes.c_size_t(_WORKSPACE))
    status = _library().cublasLtMatmulAlgoGetHeuristic(
        *(_POINTER(torch.cuda.current_blas_handle()), description),
        *(layouts[1], layouts[0], layouts[2], layouts[2], preference),
        *(1, ctypes.byref(found), ctypes.byref(count)),
    )
    _call("cublasLtMatmulPreferenceDestroy", preference)
    _call("cublasLtMatmulDescDestroy", description)
    return None if status or not count.value or found.state else _Plan(*layouts, found)


def add_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b_scale_inv: torch.Tensor,
    sums: torch.Tensor,
    accumulate: bool,
) -> bool:
    """``sums += (a * a_scale_inv) @ (b * b_scale_inv)^T``, summed in float32, in place.

    :param a: [m, k], FP8, contiguous.
    :param b: [n, k], FP8, contiguous; not both operands are E5M2.
    :param a_scale_inv: float32: [1], or [k / 128, m] for blocks of 1 x 128, contiguous.
    :param b_scale_inv: likewise with n; both have blocks, or neither.
    :param sums: [m, n], float32, contiguous.
    :param accumulate: if False, the GEMM replaces what ``sums`` holds.
    :returns: False, with nothing done, where cuBLASLt cannot.
    """
    (m, k), n, device = a.shape, b.shape[0], sums.device
    if isinstance(sums, FakeTensor):
        torch._scaled_mm(a, b.t(), a_scale_inv, b_scale_inv, out_dtype=sums.dtype, out=sums)
        return True
    tensors = a, b, a_scale_inv, b_scale_inv, sums
    if device.type != "cuda" or _library() is None or m % _MULTIPLE or n % _MULTIPLE:
        return False
    if not k or k % _MULTIPLE or any(one.data_ptr() % _MULTIPLE for one in tensors):
        return False
    with torch.cuda.device(device):
        by_block = a_scale_inv.dim() > 1
        plan = _plan(m, n, k, a.dtype, b.dtype, by_block, device)
        if plan is None:
            return False
        size = plan.heuristic.workspace
        workspace = torch.empty(size, dtype=torch.uint8, device=device)
        description = _description(a_scale_inv.data_ptr(), b_scale_inv.data_ptr(), by_block)
        _call(
            "cublasLtMatmul",
            *(_POINTER(torch.cuda.current_blas_handle()), description),
            *(_ONE, _POINTER(b.data_ptr()), plan.b, _POINTER(a.data_ptr()), plan.a),
            _ONE if accumulate else _ZERO,
            *(_POINTER(sums.data_ptr()), plan.sums, _POINTER(sums.data_ptr()), plan.sums),
            *(ctypes.byref(plan.heuristic), _POINTER(workspace.data_ptr() if size else None)),
            *(ctypes.c_size_t(size), _POINTER(torch.cuda.current_stream(device).cuda_stream)),
        )
        _call("cublasLtMatmulDescDestroy", description)
    return True
