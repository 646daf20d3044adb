"""What of Transformer Engine's compiled extension is served, by what, in which releases.

    python tools/extension_table.py WHEEL_OR_DIRECTORY...

reads the names that NVIDIA's Python asks of its extension from the text of its releases, none of
which is imported, writes tools/libraries/extension.json, and says what is unknown here: status 1.
The end of docs/libraries.md is made from it by ``make docs``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from charts import table
from library_facts import Names, sources

DATA: Final = Path(__file__).with_name("libraries") / "extension.json"
EXTENSION: Final = "transformer_engine_torch"
#: Modules beside the extension's package that its functions call.
_SHARED: Final = ("adam.py", "tensor_lists.py", "softmax.py")
#: Names of a plugin that replaces all of the extension.
_OTHERS: Final = {"flash_attention", "get_attention_backend"}

_INTRODUCTION: Final = """\
# Transformer Engine's extension

NVIDIA's own Transformer Engine runs on accel_bridge's `transformer_engine_torch` where its compiled
one is not used. Each name that its Python asks for is served by a backend's *kernel*, by the
*reference* in plain PyTorch, or *refused* when it is called. Enumerations and classes are *values*.
`python tools/extension_table.py WHEEL...` reads other releases.

"""


def read(place: Path) -> tuple[str, list[str]]:
    """(release, names) of a wheel or of a directory in which it is unpacked."""
    names, version = set(), re.search(r"(\d+\.\d+\.\d+)", place.name)
    for path, text in sources(place if place.is_file() else place / "transformer_engine"):
        # In the exporter `tex` is a set of ONNX operators.
        if "/jax/" not in f"/{path}" and not path.endswith("onnx_extensions.py"):
            found = Names().read(ast.parse(text)).found
            names |= {name.split(".")[1] for name in found if name.startswith(f"{EXTENSION}.")}
    return version[1] if version else place.name, sorted(names - _OTHERS)


@cache
def contracts() -> Mapping[str, frozenset[str]]:
    """Name of a function of the extension's package -> names of the contracts that it reaches."""
    from accel_bridge import kernels

    known = {name: one.name for name, one in vars(kernels).items() if name.isupper()
             and isinstance(one, kernels.Contract)}  # fmt: skip
    directory = Path(str(import_module(f"accel_bridge.libraries.{EXTENSION}").__file__)).parent
    uses: dict[str, set[str]] = {}
    for file in (*directory.glob("*.py"), *(directory.parent / name for name in _SHARED)):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [getattr(node, "name", "")]
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [one.id for one in targets if isinstance(one, ast.Name)]
            inside = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            inside |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            for name in filter(None, names):
                uses.setdefault(name, set()).update(inside - {name})
    reached = {}
    for name in uses:
        seen, todo = set(), [name]
        while todo:
            one = todo.pop()
            if one not in seen:
                seen.add(one)
                todo += uses.get(one, ())
        reached[name] = frozenset(known[one] for one in seen if one in known)
    return reached


def served_by(name: str, backend: str) -> str:
    """``kernel``, ``reference``, ``value`` or ``refused``."""
    extension = import_module(f"accel_bridge.libraries.{EXTENSION}")
    module = extension.NAMES.get(name)
    if module is None or not extension.served(name):
        return "refused"
    if module == "enums" or name[:1].isupper():
        return "value"
    kernels = import_module(f"accel_bridge.backends.{backend}.kernels").KERNELS
    reached = contracts().get(name, frozenset())
    if name == "create_empty_quantized_tensor":
        reached = frozenset()  # it only allocates
    if module == "layers" and not re.search("norm|softmax", name):  # an activation
        reached = frozenset({"swiglu"} if "swiglu" in name else {"geglu"} if name.endswith("geglu")
                            and "q" not in name else ())  # fmt: skip
        reached = frozenset() if name.startswith(("scaled", "clamped")) else reached
    fast = any(one.contract.name in reached and not one.is_reference for one in kernels)
    return "kernel" if fast else "reference"


def page() -> str:
    """The end of docs/libraries.md."""
    releases: dict[str, list[str]] = json.loads(DATA.read_text(encoding="utf-8"))
    backends = ("cpu", "cuda", "ascend")
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in sorted({one for names in releases.values() for one in names}):
        having = [release for release in releases if name in releases[release]]
        which = "all" if len(having) == len(releases) else ", ".join(having)
        cells = (which, *(served_by(name, backend) for backend in backends))
        rows.setdefault(cells, []).append(f"`{name}`")
    # Names that share every answer share a row.
    lines = ((", ".join(names), *cells) for cells, names in sorted(rows.items()))
    made = table(("names", "releases", *backends), lines)
    return _INTRODUCTION + f"Releases: {', '.join(releases)}.\n\n" + made


def main() -> int:
    """Read releases; 1 if one asks for a name that is unknown here."""
    extension = import_module(f"accel_bridge.libraries.{EXTENSION}")
    found = dict(map(read, map(Path, sys.argv[1:])))
    DATA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    unknown = {
        release: [name for name in names if name not in extension.NAMES]
        for release, names in found.items()
    }
    for release, names in unknown.items():
        missing = [name for name in found[release] if not extension.served(name)]
        print(f"{release}: {len(found[release])} names, {len(missing)} refused", end="")
        print(f"; unknown: {', '.join(names)}" if names else "")
    return int(any(unknown.values()))


if __name__ == "__main__":
    sys.exit(main())
