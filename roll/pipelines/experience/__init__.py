"""Experience between programs: one samples into a store, another learns from it."""
