"""Engines that train and score, and what they share."""
