"""Trajectories: the records, their samples and batches, and the parquet store."""
