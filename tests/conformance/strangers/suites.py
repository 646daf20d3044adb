"""Which tests of which projects: small parts that need no network, no data and no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of one project.

    :param name: the project, and the directory of its sources under ``--sources``.
    :param directory: where pytest starts, in the sources.
    :param paths: what pytest is given, from there.
    :param chosen: pytest's ``-k``; what is left out wants a network, or minutes.
    :param own: the tests are ours, beside this file, and no sources are needed.
    """

    name: str
    directory: str
    paths: tuple[str, ...]
    chosen: str = ""
    own: bool = False


SUITES: Final = (
    Suite("torchvision", "", ("vision_models.py",), own=True),
    Suite("transformers", "", ("modeling_modules.py",), own=True),
    Suite(
        "timm",
        "",
        ("tests/test_layers.py", "tests/test_layers_drop.py", "tests/test_utils.py"),
    ),
    Suite(
        "torchmetrics",
        "tests",
        (
            "unittests/bases/test_aggregation.py",
            "unittests/bases/test_composition.py",
            "unittests/bases/test_collections.py",
        ),
        "not ddp and not plot",
    ),
    Suite(
        "torchdata",
        "test",
        ("nodes/test_pin_memory.py", "nodes/test_batch.py", "stateful_dataloader/test_sampler.py"),
    ),
    Suite(
        "lightning",
        "tests",
        ("tests_fabric/plugins/precision", "tests_fabric/utilities"),
        "not spawn and not cloud and not download",
    ),
    Suite(
        "accelerate",
        "",
        ("tests/test_data_loader.py", "tests/test_hooks.py", "tests/test_modeling_utils.py"),
        "not pretrained and not hub",
    ),
    Suite(
        "peft",
        "",
        ("tests/test_low_level_api.py", "tests/test_bufferdict.py", "tests/test_mapping.py"),
        "not hub and not pretrained",
    ),
)
