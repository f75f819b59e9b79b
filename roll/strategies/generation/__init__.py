"""Engines that generate, and what they share."""
