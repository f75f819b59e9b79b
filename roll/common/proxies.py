"""Proxies of a network, none of which reaches what listens on this machine."""

from __future__ import annotations

import os

_HERE = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
_NAMES = ("no_proxy", "NO_PROXY")


def ask_this_machine_itself() -> None:
    """Let clients of this process and its children ask no proxy for servers on this machine.

    Clients of HTTP read the same variables, and ask the proxy of ``http_proxy`` or ``ALL_PROXY`` for ``127.0.0.1`` as
    well: a policy, a judge or an environment on this machine seems to be gone. Without a proxy nothing is set.
    """
    if any(name.lower().endswith("_proxy") and name not in _NAMES and value for name, value in os.environ.items()):
        os.environ.update(past_proxies())


def past_proxies() -> dict[str, str]:
    """Return the variables that leave this machine's addresses to no proxy, beside those that were left out already."""
    # Where one of the two names is missing clients read the other.
    either = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return {name: _with_this_machine(os.environ.get(name) or either) for name in _NAMES}


def _with_this_machine(listed: str) -> str:
    left_out = [host.strip() for host in listed.split(",") if host.strip()]
    if "*" in left_out:
        return "*"
    return ",".join([*left_out, *(host for host in _HERE if host not in left_out)])
