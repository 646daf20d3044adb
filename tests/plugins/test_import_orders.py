"""Adaptors that are installed, imported before accel_bridge, after it, and on both sides of it.

The packages are injected: each prints its name when it is imported, so that a test sees which ran.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_site import Python

INJECTED = {
    "mindspeed/__init__.py": "",
    "mindspeed/megatron_adaptor.py": "print('ran mindspeed')\n",
    "mindspeed_llm/__init__.py": "",
    "mindspeed_llm/megatron_adaptor.py": "import mindspeed.megatron_adaptor\n"
    "print('ran mindspeed_llm')\n",
    "torch_npu/__init__.py": "import torch\nprint('ran torch_npu')\n",
    "torch_npu/contrib/__init__.py": "",
    "torch_npu/contrib/transfer_to_npu.py": "print('ran transfer_to_npu')\n",
}
OURS = "import accel_bridge.auto"
NPU = "import torch_npu\nfrom torch_npu.contrib import transfer_to_npu"
MINDSPEED = "import mindspeed.megatron_adaptor\nfrom mindspeed_llm import megatron_adaptor"
ORDERS = ((NPU, OURS, MINDSPEED), (MINDSPEED, OURS, NPU))
USE = "import torch\nprint(torch.ones(1, device='cuda').device)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Where a script goes: the injected packages lie beside it, so that it finds them."""
    for name, source in INJECTED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    return tmp_path / "script.py"


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(x.split()[1] for x in order))
def test_each_order_runs(order: tuple[str, ...], script: Path, python: Python) -> None:
    """What comes before ours is the real one; what comes after is empty, and one line says so."""
    script.write_text("\n".join(order) + "\n" + USE)
    done = python(str(script), ACCEL_BRIDGE_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
    ours = order.index(OURS)
    for lines, packages, ran in (
        (NPU, ["torch_npu"], ["torch_npu", "transfer_to_npu"]),
        (MINDSPEED, ["mindspeed", "mindspeed_llm"], ["mindspeed", "mindspeed_llm"]),
    ):
        first = order.index(lines) < ours
        assert [name for name in ran if f"ran {name}\n" in done.stdout] == (ran if first else [])
        for package in packages:
            count = done.stderr.count(f"`import {package}` does nothing")
            assert count == (0 if first else 1), done.stderr
    assert done.stdout.splitlines()[-1] == "cpu"
