"""Schedulers: who generates what, and which episodes make up a step."""
