"""Parity: does a kernel compute what its contract says, by a rule others trust?"""
