"""The review of a run: its episodes as pages, served on this machine or kept in one file."""
