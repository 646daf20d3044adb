"""Where what can be made again is kept between runs: our own directory, and those of libraries."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from accel_bridge.errors import BridgeError

#: Variable of a directory -> who keeps what in it.
USES: Final = {
    "TMPDIR": "programs keep temporary files",
    "TORCHINDUCTOR_CACHE_DIR": "torch.compile keeps its code",
    "TRITON_CACHE_DIR": "Triton keeps its compiled kernels",
    "TORCH_EXTENSIONS_DIR": "torch compiles C++ extensions",
    "XDG_CACHE_HOME": "programs keep what they can make again",
    "TORCH_HOME": "torch keeps what it downloads",
    "HF_HOME": "Hugging Face's libraries keep models and tokenizers",
    "TIKTOKEN_CACHE_DIR": "tiktoken keeps vocabularies",
    "MPLCONFIGDIR": "matplotlib keeps its list of fonts",
    "CUDA_CACHE_PATH": "CUDA's driver keeps compiled kernels",
    "NUMBA_CACHE_DIR": "Numba keeps compiled functions",
}
_ERRNO: Final = re.compile(r"\[Errno \d+\] [^:]+: '([^']+)'")


def cache_directory(name: str) -> Path:
    """``$XDG_CACHE_HOME/accel_bridge/NAME``, or the same in ``~/.cache``; it may not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "accel_bridge" / name


def directories(environ: Mapping[str, str]) -> dict[str, Path]:
    """Variable -> its directory: all that are set, and the defaults of those training needs."""
    home = environ.get("HOME") or "/"
    temporary = environ.get("TMPDIR") or "/tmp"
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # no such user, as in many a container
        user = str(os.getuid())
    defaults = {
        "TMPDIR": temporary,
        "TORCHINDUCTOR_CACHE_DIR": f"{temporary}/torchinductor_{user}",
        "TRITON_CACHE_DIR": f"{environ.get('TRITON_HOME') or home}/.triton/cache",
        "TORCH_EXTENSIONS_DIR": f"{home}/.cache/torch_extensions",
    }
    places = {name: environ.get(name) or defaults.get(name) for name in USES}
    return {name: Path(place) for name, place in places.items() if place}


def variable_of(path: str, environ: Mapping[str, str]) -> str | None:
    """The variable whose directory a path is in, or is on the way to; the nearest of several."""
    near = [
        (len(place.parts), name)
        for name, place in directories(environ).items()
        if place == Path(path) or place in Path(path).parents or Path(path) in place.parents
    ]
    return max(near, default=(0, None))[1]


def explain(error: BaseException) -> BridgeError | None:
    """What an error means that says that such a directory cannot be used; else None."""
    for one in _chain(error):
        text = str(one)
        found = _ERRNO.search(text)
        name = variable_of(found[1], os.environ) if found else None
        if "No usable temporary directory" in text:
            name = "TMPDIR"
        # A file that is missing in /tmp is no fault of TMPDIR: the directory itself is tried.
        if name is None or not isinstance(one, OSError):
            continue
        place = directories(os.environ)[name]
        if not _takes_files(place):
            return BridgeError(
                f"{place} cannot be used, where {USES[name]}.",
                evidence=f"{type(one).__name__}: {text} ({name}="
                f"{os.environ.get(name) or 'not set'})",
                next=f"export {name}=A DIRECTORY THAT YOU MAY WRITE, or make room there (df -h)",
            )
    return None


def _takes_files(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))
    except OSError:
        return False
    return True


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
