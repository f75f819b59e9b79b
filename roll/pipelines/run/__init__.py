"""The life cycle of a run, whatever it does: folders, resume, recovery, checkpoints, logs, signals, the end."""
