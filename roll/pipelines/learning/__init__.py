"""From trajectories to new weights: samples, credit, objectives, optimiser steps."""
