"""The ``roll`` command: one file for each of its commands, all of them listed in :mod:`roll.cli.app`."""
