"""Engines that generate and engines that train."""
