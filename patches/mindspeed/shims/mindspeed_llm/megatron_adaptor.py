"""What scripts import for its effect: the active bridge has it."""
