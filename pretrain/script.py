"""Which script ``accel-bridge pretrain`` runs: its own, or an older Megatron's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from packaging.version import Version

from accel_bridge.errors import BridgeError
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process import log

#: The entry point of this package, as words for ``accel_bridge.run``.
OWN: Final = ("-m", "accel_bridge.pretrain.pretrain_gpt")
#: The oldest Megatron that it is written for.
OLDEST: Final = Version("0.19")
_DISTRIBUTION: Final = "megatron-core"
_NAME: Final = "pretrain_gpt.py"


def script() -> tuple[str, ...]:
    """Words for ``accel_bridge.run``: the entry point, or the script of an older checkout.

    :raises BridgeError: the Megatron is older than the entry point, and has no script.
    """
    versions = dict(found.item for found in load_plugins().versions().items)
    version = versions.get(_DISTRIBUTION)
    if version is None or Version(version) >= OLDEST:
        return OWN
    folder = _folder()
    if folder is not None and (folder / _NAME).is_file():
        log.say(f"{_DISTRIBUTION} {version} trains with its own {folder / _NAME}")
        return (str(folder / _NAME),)
    lacks = "megatron.training" if folder is None else _NAME
    raise BridgeError(
        f"{_DISTRIBUTION} {version} has no script to train with.",
        evidence=[
            f"no {lacks} beside the megatron that would be imported",
            f"accel_bridge's own needs {_DISTRIBUTION}>={OLDEST}",
        ],
        next=f"put a checkout of Megatron-LM (git checkout core_v{version}) first in PYTHONPATH, "
        f'or pip install "{_DISTRIBUTION}[training]>={OLDEST}"',
    )


def _folder() -> Path | None:
    """Where ``megatron.training`` is: the folder of the checkout, or site-packages."""
    try:
        spec = importlib.util.find_spec("megatron.training")
    except ImportError:
        return None
    return Path(spec.origin).parents[2] if spec is not None and spec.origin else None
