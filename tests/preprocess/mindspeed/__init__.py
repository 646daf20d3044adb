"""Instruction data against MindSpeed-LLM's own tool: samples, cases and its recorded answers."""
