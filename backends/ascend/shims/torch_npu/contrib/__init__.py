"""What scripts import from it."""
