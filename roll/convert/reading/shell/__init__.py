"""Launch scripts of bash: what the command that trains is given, found without running anything."""

from roll.convert.reading.shell.script import read_script

__all__ = ["read_script"]
