"""Adapters for libraries that cannot take the environment as it is."""
