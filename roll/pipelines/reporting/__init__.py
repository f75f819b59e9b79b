"""What is told of what was sampled: metrics, review pages, stored trajectories, warnings."""
