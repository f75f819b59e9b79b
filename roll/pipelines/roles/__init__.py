"""The roles of a run as the driver sees them: one object each, however many workers stand behind it."""
