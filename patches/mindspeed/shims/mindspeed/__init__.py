"""Stands for MindSpeed where it does not do its work."""
