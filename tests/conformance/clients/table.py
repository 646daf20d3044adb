"""What is run: the clients."""

from __future__ import annotations

from typing import Final

from conformance.clients.megatron_bridge import BRIDGE
from conformance.clients.megatron_converters import CONVERTERS
from conformance.clients.megatron_lm import MEGATRON
from conformance.clients.ms_swift import SWIFT
from conformance.clients.pai import PAI
from conformance.clients.policies import AREAL, NEMO, ROLL, SKYRL
from conformance.clients.ray_workers import RAY
from conformance.clients.slime import SLIME
from conformance.clients.steps import Client
from conformance.clients.torchtitan import TITAN
from conformance.clients.trainers import ACCELERATE, FABRIC, MODELOPT, RESILIENCY
from conformance.clients.verl import VERL

CLIENTS: Final[tuple[Client, ...]] = (
    *(MEGATRON, CONVERTERS, BRIDGE, VERL, RAY, SWIFT),
    *(SLIME, AREAL, SKYRL, NEMO, ROLL, PAI),
    *(ACCELERATE, FABRIC, MODELOPT, TITAN, RESILIENCY),
)
