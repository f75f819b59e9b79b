"""What is told of what was sampled: metrics, a review, stored trajectories, warnings."""
