"""One class per role: what runs inside a worker, in this process or as a Ray actor."""
