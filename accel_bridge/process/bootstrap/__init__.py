"""What a child process finds on its PYTHONPATH: modules that know nothing of this package."""
