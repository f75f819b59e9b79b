"""What every layer may use. Imports nothing of the other packages, and nothing that takes long to load."""
