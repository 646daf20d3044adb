"""Bad inputs of every kind, made from tables and seeds, and what each command answers."""
