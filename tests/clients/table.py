"""What is run: the clients, in the order of docs/clients.md."""

from __future__ import annotations

from typing import Final

from clients.megatron_bridge import BRIDGE
from clients.ms_swift import SWIFT
from clients.ray_workers import RAY
from clients.steps import Client
from clients.verl import VERL

CLIENTS: Final[tuple[Client, ...]] = (BRIDGE, VERL, RAY, SWIFT)
