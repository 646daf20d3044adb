"""Plugins: the hooks, how plugins are found, loaded and isolated, and what they contribute."""
