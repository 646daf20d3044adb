"""``accel-bridge env``: versions and devices; works with a broken torch, torch_npu or CANN."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeVar

from accel_bridge import __version__
from accel_bridge.apps._imports import SECONDS, try_imports
from accel_bridge.apps.cli import backends, libraries
from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_heading,
    print_json,
    print_table,
)
from accel_bridge.device.backend import Backend
from accel_bridge.errors import BridgeError, printable
from accel_bridge.libraries import Origin
from accel_bridge.process.environment import VARIABLES, Settings, Variable, unknown_variables
from accel_bridge.process.log import say
from accel_bridge.process.parser import Parser, seconds

#: Distributions whose versions decide what works.
PACKAGES: Final = tuple(
    """
torch triton megatron-core torch-npu mindspeed transformer-engine apex liger-kernel flash-attn numpy
pluggy packaging rich matplotlib tokenizers tiktoken gigatoken sentencepiece orjson pyarrow
zstandard ray
""".split()
)
#: What is imported when its distribution is installed. Not mindspeed: it parses sys.argv and
#: changes torch when it is imported.
IMPORTS: Final = {
    "torch": "torch",
    "torch-npu": "torch_npu",
    "transformer-engine": "transformer_engine",
    "megatron-core": "megatron.core",
}
#: Variables of other software that change what happens here.
_RELEVANT: Final = re.compile(
    r"(ASCEND|CANN|CUDA|GLOO|HCCL|LOCAL|MASTER|NCCL|NVIDIA|NVTE|OMP|PYTORCH|TASK_QUEUE|TORCH)_"
    r"|(CONDA_PREFIX|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|RANK|VIRTUAL_ENV|WORLD_SIZE)$"
)
#: Values that must not end up in an issue.
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|KEY")


Found = TypeVar("Found")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge env",
        description="Prints versions, devices and variables. Libraries are imported in child "
        "processes only, so a broken torch, torch_npu or CANN is shown, not met.",
    )
    parser.add_argument(
        "--no-imports", action="store_true", help="do not try to import torch and others (quick)"
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=SECONDS,
        help="that all imports together may take (default: %(default)g)",
    )
    add_json_flag(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    with only_stderr():
        report = look(with_imports=not arguments.no_imports, seconds=arguments.wait)
    if arguments.json:
        print_json(lambda: report)
    else:
        _print(report)
    return 0


def look(
    environ: Mapping[str, str] = os.environ,
    *,
    with_imports: bool = True,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """Look at everything, as a JSON document; raises nothing for what is broken.

    :param seconds: that all imports together may take.
    """
    packages = installed_versions()
    settings = _or_error(lambda: Settings.from_environ(environ))
    if isinstance(settings, BridgeError):
        settings = Settings()  # the wrong value is shown in the table of settings
    hardware = _or_error(lambda: backends.survey(settings))
    found = _or_error(lambda: _libraries(settings, hardware))
    declared = () if isinstance(hardware, BridgeError) else hardware.plugins.variables()
    explained = _explained(hardware, environ)
    imports = {}
    if with_imports:
        if not isinstance(found, BridgeError):  # what no program here imports as it is
            imports = {
                one.library.name: f"{one.origin.value} by accel_bridge"
                for one in found.resolutions
                if one.origin is Origin.COMPLETED
            }
        modules = [module for name, module in IMPORTS.items() if packages[name]]
        tried = try_imports([one for one in modules if one not in imports], seconds, say)
        imports = {result.module: result.detail or "ok" for result in tried} | imports
    return {
        "accel_bridge": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": packages,
        "imports": imports,
        "hardware": _hardware(hardware),
        "libraries": libraries.report(found),
        "settings": {
            variable.name: _setting(variable, environ) for variable in (*VARIABLES, *declared)
        },
        "unknown_settings": list(unknown_variables(declared, environ)),
        "environment": relevant_variables(environ, explained),
        "environment_explained": explained,
    }


def _or_error(look: Callable[[], Found]) -> Found | BridgeError:
    try:
        return look()
    except BridgeError as error:
        return error


def installed_versions() -> dict[str, str | None]:
    """Version of each distribution in :data:`PACKAGES` by its metadata; None: not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
        except Exception as error:  # its metadata is missing or damaged
            found[name] = f"unknown ({type(error).__name__} in its metadata)"
    return found


def relevant_variables(environ: Mapping[str, str], also: Container[str] = ()) -> dict[str, str]:
    """Variables of other software that matter here; secrets are shown as ``<set>``."""
    return {
        name: "<set>" if _SECRET.search(name) else environ[name]
        for name in sorted(environ)
        if _RELEVANT.match(name) or name in also
    }


def _libraries(settings: Settings, hardware: backends.Survey | BridgeError) -> libraries.Libraries:
    if isinstance(hardware, BridgeError):
        raise hardware
    if isinstance(hardware.selected, BridgeError):
        raise hardware.selected
    return libraries.look(settings, hardware.plugins, hardware.selected)


def _setting(variable: Variable[Any], environ: Mapping[str, str]) -> dict[str, str | None]:
    found = _or_error(lambda: variable.read(environ))
    return {
        "name": variable.name,
        "value": environ.get(variable.name),
        "default": variable.default,
        "values": variable.values,
        "help": variable.help,
        "error": found.what if isinstance(found, BridgeError) else None,
    }


def _hardware(hardware: backends.Survey | BridgeError) -> dict[str, Any]:
    """Probes, selection and versions, or the error that prevents them."""
    if isinstance(hardware, BridgeError):
        return {"error": str(hardware)}
    selected = hardware.selected
    return {
        **backends.report(hardware),
        "error": str(selected) if isinstance(selected, BridgeError) else None,
        "versions": {
            probed.backend.name: _facts(probed.backend.versions) for probed in hardware.probes
        },
    }


def _explained(
    hardware: backends.Survey | BridgeError, environ: Mapping[str, str]
) -> dict[str, str]:
    """What the selected backend says of its software's variables."""
    if isinstance(hardware, BridgeError) or isinstance(hardware.selected, BridgeError):
        return {}
    chosen: Backend = hardware.selected.chosen
    return _facts(lambda: chosen.explain(environ))


def _facts(ask: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """What a backend answers; a third party's may break its promise not to raise."""
    try:
        return {str(name): str(value) for name, value in ask().items()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _print(report: dict[str, Any]) -> None:
    rows = [
        ["accel_bridge", __version__],
        ["python", f"{report['python']}  {report['executable']}"],
        ["platform", f"{report['platform']}, {report['processors']} processors"],
    ]
    print_table(["", ""], rows)
    print_heading("Packages")
    imports = report["imports"]
    rows = [
        [name, found or "not installed", imports.get(IMPORTS.get(name, ""), "")]
        for name, found in report["packages"].items()
    ]
    print_table(["package", "version", "import"], rows)
    print_heading("Hardware")
    hardware = report["hardware"]
    if "backends" in hardware:
        backends.print_probes(hardware)
        for backend, versions in hardware["versions"].items():
            for name, found in versions.items():
                print(printable(f"{backend} {name}: {found}"))
        why = hardware["error"] or hardware["chosen"]["why"]
        print(f"\nchosen: {printable(why, keep=chr(10))}")
    else:
        print(hardware["error"])
    print_heading("Libraries")
    libraries.print_libraries(report["libraries"])
    print_heading("Settings")
    rows = [
        [
            one["name"],
            "(not set)" if one["value"] is None else one["value"],
            one["default"],
            one["values"],
            f"WRONG: {one['error']}" if one["error"] else one["help"],
        ]
        for one in report["settings"].values()
    ]
    print_table(["variable", "value", "default", "takes", "what it does"], rows)
    for line in report["unknown_settings"]:
        print(printable(f"warning: {line}"))
    print_heading("Environment")
    explained = report["environment_explained"]
    rows = [[name, value, explained.get(name, "")] for name, value in report["environment"].items()]
    print_table(["variable", "value", ""], rows)
