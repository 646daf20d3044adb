"""What users install and read: wheel, constraints, Makefile, documentation."""
