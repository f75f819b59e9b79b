"""Task sources, how tasks are played, and the stream that gives each step its groups."""
