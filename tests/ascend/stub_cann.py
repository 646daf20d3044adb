"""Substitute CANN libraries without a compiler: every function that torch_npu asks for returns 0.

Enough to import the real torch_npu and to look at its operators' schemas and Meta kernels; no
device works. x86-64 Linux only: the libraries hold machine code.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from accel_bridge.backends.ascend.checks import CANN_LIBRARIES

#: Undefined names of torch_npu that belong to CANN.
_CANN = re.compile(r"acl|Hccl|hccl|Msprof|rt[A-Z]|Adx|aoe|_ZNK?2ge|_ZNK?4hccl|_Z\w*acl[A-Z]")
_UNDEFINED, _DYNSYM = 0, 11
#: xor eax, eax; ret
_RETURN_0 = b"\x31\xc0\xc3"
_PAGE = 0x1000


def undefined(library: Path) -> set[str]:
    """Names that a 64-bit shared library uses and does not define."""
    data = library.read_bytes()
    start, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    names = set()
    for section in sections:
        if section[1] != _DYNSYM:
            continue
        strings = sections[section[6]][4]
        for place in range(section[4], section[4] + section[5], 24):
            name, _, _, index = struct.unpack_from("<IBBH", data, place)
            if index == _UNDEFINED and name:
                end = data.index(b"\0", strings + name)
                names.add(data[strings + name : end].decode())
    return names


def shared_library(soname: str, functions: list[str]) -> bytes:
    """An ELF shared object whose functions all return 0."""
    strings, offsets = b"\0", []
    for text in (*functions, soname):
        offsets.append(len(strings))
        strings += text.encode() + b"\0"
    symbols = 1 + len(functions)
    code, table = 0x200, 0x210
    hashes = table + 24 * symbols
    # One bucket: the loader walks the chain from symbol 1.
    chain = [*range(2, symbols), 0] if functions else []
    chains = struct.pack(f"<{3 + 1 + len(chain)}I", 1, symbols, 1 if functions else 0, 0, *chain)
    dynstr = hashes + len(chains)
    dynamic = (dynstr + len(strings) + 15) // 16 * 16
    symbol_table = b"\0" * 24 + b"".join(
        # Global functions, all at the same three bytes of code.
        struct.pack("<IBBHQQ", name, 0x12, 0, 1, code, len(_RETURN_0))
        for name in offsets[:-1]
    )
    # DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME, DT_NULL
    entries = ((4, hashes), (5, dynstr), (6, table), (10, len(strings)), (11, 24))
    tags = b"".join(struct.pack("<QQ", *entry) for entry in (*entries, (14, offsets[-1]), (0, 0)))
    total = dynamic + len(tags)
    header = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    # One segment that may be read, written and executed, and the dynamic section in it.
    header += struct.pack("<IIQQQQQQ", 1, 7, 0, 0, 0, total, total, _PAGE)
    header += struct.pack("<IIQQQQQQ", 2, 6, dynamic, dynamic, dynamic, len(tags), len(tags), 8)
    image = bytearray(total)
    for place, part in (
        (0, header),
        (code, _RETURN_0),
        (table, symbol_table),
        (hashes, chains),
        (dynstr, strings),
        (dynamic, tags),
    ):
        image[place : place + len(part)] = part
    return bytes(image)


def write(directory: Path, torch_npu: Path) -> None:
    """Write the libraries that the torch_npu in ``torch_npu`` needs into ``directory``."""
    names: set[str] = set()
    for library in (torch_npu / "torch_npu").rglob("*.so"):
        names |= {name for name in undefined(library) if _CANN.match(name)}
    for soname in CANN_LIBRARIES:
        functions = sorted(names) if soname == "libascendcl.so" else []
        (directory / soname).write_bytes(shared_library(soname, functions))
