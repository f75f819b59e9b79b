"""What runs leave in their folders, for whoever reads it: how it is laid out, who has it now, how the run ended."""
