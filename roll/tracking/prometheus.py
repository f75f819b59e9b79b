"""The newest metrics of a run for Prometheus, which comes and asks for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from roll.tracking.services import optional_package

DEFAULT_PORT = 9464
"""What exporters of OpenTelemetry listen on, too."""


class PrometheusTracker:
    """Answers ``http://…:PORT/metrics`` with the newest value of every metric, as gauges, and the newest step.

    ``rollout/success`` is called ``roll_rollout_success`` there; what differs only in other characters than letters and
    digits is one. Takes ``port`` (0: one that is free) and ``address``.

    Raises:
        OSError: The port is taken.
    """

    def __init__(
        self, *, log_dir: Path, resume_step: int | None = None, port: int = DEFAULT_PORT, address: str = "127.0.0.1"
    ) -> None:
        client = optional_package("prometheus_client", "prometheus", "'roll-rl[monitoring]'")
        self._gauge, self._registry = client.Gauge, client.CollectorRegistry()
        self._gauges: dict[str, object] = {}
        try:
            self._server, _ = client.start_http_server(port, addr=address, registry=self._registry)
        except OSError as error:
            raise OSError(
                error.errno,
                f"track_with: prometheus cannot listen on {address}:{port} ({error.strerror}). Name another port: "
                "tracker_kwargs={prometheus: {port: 9465}}; 0 takes one that is free",
            ) from error
        self.port: int = self._server.server_port
        if resume_step is not None:
            self._set("roll_step", "step", resume_step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Make these the newest values."""
        self._set("roll_step", "step", step)
        for name, value in metrics.items():
            self._set(prometheus_name(name), name, float(value))

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def _set(self, name: str, words: str, value: float) -> None:
        if name not in self._gauges:
            self._gauges[name] = self._gauge(name, f"{words} of the newest step that has it", registry=self._registry)
        self._gauges[name].set(value)  # type: ignore[attr-defined]


def prometheus_name(name: str) -> str:
    """Return what a metric is called in Prometheus, which knows letters, digits and underscores."""
    return "roll_" + re.sub(r"[^a-zA-Z0-9]+", "_", name).strip("_")
