"""roll.trajectories"""
