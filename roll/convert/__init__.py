"""Configurations of other systems, turned into native ones with a report of every key."""

from roll.convert.converting import Conversion, convert
from roll.convert.foreign import SYSTEMS, Foreign
from roll.convert.reading import read
from roll.convert.report import as_json, render_report
from roll.convert.writing import to_native_yaml

__all__ = ["SYSTEMS", "Conversion", "Foreign", "as_json", "convert", "read", "render_report", "to_native_yaml"]
