"""Certificates: whether an environment is fit to train on, tried in processes of its own."""

from roll.certificates.certify import Measurements, certify
from roll.certificates.children import Children
from roll.certificates.records import QUICK, Certificate, Effort, Finding, PolicyResult, Status
from roll.certificates.target import Target, TargetError

__all__ = [
    "QUICK",
    "Certificate",
    "Children",
    "Effort",
    "Finding",
    "Measurements",
    "PolicyResult",
    "Status",
    "Target",
    "TargetError",
    "certify",
]
