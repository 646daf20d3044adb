"""Applications of the layer: the command line, the demo, parity checks, a pytest plugin."""
