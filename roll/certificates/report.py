"""A certificate as JSON and as a page; the same bytes for the same certificate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from roll.certificates.certify import Measurements
from roll.certificates.records import Certificate, Finding, Status

CERTIFICATE_JSON, CERTIFICATE_HTML, MEASUREMENTS_JSON = "certificate.json", "certificate.html", "measurements.json"

GROUPS = {
    "contract": "Interface",
    "seeds": "Seeds",
    "groups": "Groups",
    "episodes": "Episodes",
    "rewards": "Rewards",
    "policies": "Scripted policies",
    "text": "Text",
    "costs": "Costs",
    "learning": "Learning",
}
"""First part of a check's name → how the report calls it."""


def as_json(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as JSON."""
    return {"fit": certificate.is_fit, **asdict(certificate)}


def as_html(certificate: Certificate) -> str:
    """Return a certificate as a page that needs nothing but itself."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((Path(__file__).parent / "certificate.html.jinja").read_text(encoding="utf-8"))
    counts = {status: sum(each.status is status for each in certificate.findings) for status in Status}
    return template.render(
        certificate=certificate, sections=grouped(certificate.findings), counts=counts, Status=Status
    )


def grouped(findings: tuple[Finding, ...]) -> list[tuple[str, list[Finding]]]:
    """Return findings by the group of their checks."""
    sections = []
    for group, title in GROUPS.items():
        mine = [finding for finding in findings if finding.check.partition(".")[0] == group]
        if mine:
            sections.append((title, mine))
    return sections


def write(folder: Path, certificate: Certificate, measurements: Measurements | None) -> None:
    """Write certificate.json and certificate.html, and beside them what was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CERTIFICATE_JSON).write_text(_dumped(as_json(certificate)), encoding="utf-8")
    (folder / CERTIFICATE_HTML).write_text(as_html(certificate), encoding="utf-8")
    if measurements is not None:
        (folder / MEASUREMENTS_JSON).write_text(_dumped(asdict(measurements)), encoding="utf-8")


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
