"""What a framework imports of compiled libraries, and how much it needs it."""

from __future__ import annotations

from clients.names import uses

TEXT = """
import apex
from transformer_engine.pytorch import Linear, fp8
from .apex import local
from numpy import array
try:
    import flash_attn
except ImportError:
    from mamba_ssm.ops import other
if FOUND:
    from fla.ops import chunk
def run():
    import amp_C
    with lock:
        from grouped_gemm import ops
    try:
        import causal_conv1d
    except ImportError:
        pass
class Kernel:
    from transformer_engine.common import recipe
"""


def test_a_name_is_needed_where_nothing_asks_for_it() -> None:
    found = {use.name: use.need for use in uses("x.py", TEXT)}
    assert found == {
        "apex": "module",
        "transformer_engine.pytorch.Linear": "module",
        "transformer_engine.pytorch.fp8": "module",
        "flash_attn": "choice",
        "mamba_ssm.ops.other": "module",
        "fla.ops.chunk": "choice",
        "amp_C": "function",
        "grouped_gemm.ops": "function",
        "causal_conv1d": "choice",
        "transformer_engine.common.recipe": "module",
    }


def test_a_file_that_is_no_python_has_none() -> None:
    assert not list(uses("x.py", "import apex\nprint 'two'"))
