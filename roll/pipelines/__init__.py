"""Pipelines: the order in which everything happens."""
