"""Short ways through Transformer Engine's own classes, for calls that need nothing of the long one.

Each module makes a method for one class. A call that asks for more than it knows takes Transformer
Engine's own way; what it computes is the same, by the same kernels.
"""
