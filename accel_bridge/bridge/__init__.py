"""Activation: select a backend, redirect the device, arm shims and patches, and undo all of it."""
