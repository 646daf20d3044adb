"""Stands for MindSpeed-LLM where it does not do its work."""
