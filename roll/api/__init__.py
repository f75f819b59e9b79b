"""What ``import roll`` offers to scripts and notebooks."""
