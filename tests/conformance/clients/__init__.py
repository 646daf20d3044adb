"""Frameworks above Megatron, each in an environment of its own: `make clients`."""
