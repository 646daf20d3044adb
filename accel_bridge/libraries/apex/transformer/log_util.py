"""Apex's loggers."""

from __future__ import annotations

import logging


def get_transformer_logger(name: str) -> logging.Logger:
    """The logger of a module or file ``name``."""
    return logging.getLogger(name.rpartition(".")[0] or name)


def set_logging_level(verbosity: int | str) -> None:
    """Set the level of all of Apex's loggers."""
    logging.getLogger("apex").setLevel(verbosity)
