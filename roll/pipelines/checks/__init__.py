"""Checks before any model loads; every finding is a configuration problem that names its key."""
