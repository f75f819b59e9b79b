"""What runs on the other side: an interpreter of its own that shuts itself in and then runs untrusted programs.

Started as ``python -s -S -P`` with an empty environment. These modules import each other and light parts of the
standard library, never ``roll``: the start-up time of a run is their import time.
"""
