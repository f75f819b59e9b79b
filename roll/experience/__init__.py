"""The experience store: groups of trajectories between what samples and what learns, also in two programs.

What samples appends groups; what learns leases them step by step, and says which steps are in a checkpoint. A group is
given out as often as asked for: never lost, never doubled, whichever of the two is killed at whatever moment.
"""
