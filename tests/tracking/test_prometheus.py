"""What a run shows to Prometheus, read with the parser of its own client, and scraped by the real server."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from roll.tracking import make_trackers
from roll.tracking.prometheus import PrometheusTracker, prometheus_name
from tests.ports import free_port

parser = pytest.importorskip("prometheus_client.parser")


def shown(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}


def test_the_newest_values_are_shown_as_gauges(tmp_path: Path) -> None:
    tracker = PrometheusTracker(log_dir=tmp_path, resume_step=3, port=0)
    try:
        assert shown(tracker.port) == {"roll_step": 3.0}
        tracker.log({"rollout/success": 0.5, "time/elapsed": 2, "train/loss": math.nan}, 4)
        tracker.log({"rollout/success": 0.75}, 5)
        found = shown(tracker.port)
    finally:
        tracker.close()
    assert math.isnan(found.pop("roll_train_loss"))
    assert found == {"roll_step": 5.0, "roll_rollout_success": 0.75, "roll_time_elapsed": 2.0}
    with pytest.raises(OSError):
        shown(tracker.port)


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port}.*Name another port"):
            make_trackers("prometheus", log_dir=tmp_path, tracker_kwargs={"port": port})


@pytest.mark.parametrize("name", ["rollout/reward", "val/success@3 %", "9 lives/ä"])
def test_names_are_those_that_prometheus_takes(name: str) -> None:
    found = prometheus_name(name)
    (family,) = parser.text_string_to_metric_families(f"# TYPE {found} gauge\n{found} 1\n")
    assert family.name == found


@pytest.mark.processes
@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("prometheus") is None and "CI" not in os.environ, reason="there is no Prometheus")
def test_the_real_server_scrapes_it(tmp_path: Path) -> None:
    tracker = PrometheusTracker(log_dir=tmp_path, port=0)
    tracker.log({"rollout/success": 0.25}, 7)
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: roll, static_configs: [{{targets: ['127.0.0.1:{tracker.port}']}}]}}]\n"
    )
    words = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([*words, "--storage.tsdb.path=data"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        found = _asked(f"http://127.0.0.1:{port}", "roll_rollout_success", server, tmp_path / "log")
    finally:
        server.kill()
        server.wait()
        tracker.close()
    assert found["metric"]["job"] == "roll" and found["value"][1] == "0.25"


def _asked(address: str, name: str, server: subprocess.Popen[bytes], log: Path) -> dict:
    until = time.monotonic() + 90
    query = urllib.parse.urlencode({"query": name})
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=5) as answer:
                results = json.load(answer)["data"]["result"]
        except OSError:
            results = []
        if results:
            return results[0]
        time.sleep(0.3)
    raise AssertionError(log.read_text())
