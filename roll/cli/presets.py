"""Configurations that can be named without a path. Reads their first lines only, so that completion is quick."""

from __future__ import annotations

from pathlib import Path


def configurations() -> dict[str, str]:
    """Return every name that ``roll train`` takes here, and its first comment, in the order of the names."""
    shipped = Path(__file__).resolve().parents[1] / "presets" / "config"
    found: dict[str, str] = {}
    for folder in (shipped, Path.cwd() / "config", Path.cwd()):
        for path in folder.glob("*.yaml"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if any(line.startswith("defaults:") for line in lines):
                found[path.stem] = lines[0].removeprefix("#").strip() if lines[0].startswith("#") else ""
    return dict(sorted(found.items()))
