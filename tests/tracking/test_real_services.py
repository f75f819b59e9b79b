"""A run that tracks with the real services; each is then asked, by means of its own, what it received.

``python -m venv .venv/services && .venv/services/bin/python -m pip install -r tests/tracking/services.txt``
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ROOT / ".venv" / "services"
PACKAGES = SERVICES / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
# Behind the packages of this environment: those that both have are these.
RUN = f"import sys; sys.path.append({str(PACKAGES)!r}); from roll.cli.app import main; main(sys.argv[1:])"
SMALL = [
    "train",
    "sokoban",
    "max_steps=2",
    "eval_steps=2",
    "rollout_batch_size=8",
    "train_env_manager.env_groups=2",
    "train_env_manager.group_size=4",
    "val_batch_size=4",
    "val_env_manager.env_groups=4",
    "progress=none",
    "output_dir=out",
    "track_with=[jsonl,tensorboard,mlflow,wandb,swanlab]",
    "tracker_kwargs={wandb: {mode: offline, project: sokobans}, swanlab: {mode: offline, project: sokobans}}",
]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.exhaustive,
    pytest.mark.heavy,
    pytest.mark.skipif(not SERVICES.exists() and "CI" not in os.environ, reason="there is no .venv/services"),
]


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of MLflow's server."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    words = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [SERVICES / "bin" / "python", *words, "--backend-store-uri", "sqlite:///runs.db"],
            cwd=folder,
            # Seven processes more, for what nobody asks of it here.
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, 9)
        server.wait()


@pytest.fixture(scope="module")
def out(mlflow: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that tracks with all of them."""
    folder = tmp_path_factory.mktemp("tracked")
    words = [*SMALL, f"tracker_kwargs.mlflow={{tracking_uri: '{mlflow}', experiment: sokobans, run_name: small}}"]
    words.append(f"tracing={{endpoint: '{mlflow}/v1/traces', headers: {{x-mlflow-experiment-id: '0'}}}}")
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def logged(out: Path) -> dict[int, dict[str, float]]:
    """What the run logged, by step."""
    values: dict[int, dict[str, float]] = {}
    for line in (out / "logs" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        values.setdefault(row.pop("step"), {}).update(row)
    assert set(values) == {0, 1, 2} and "val/success" in values[2] and "train/loss" in values[1]
    return values


@pytest.fixture(scope="module")
def received(out: Path) -> dict[str, dict[str, Any]]:
    """What the services that write files have in them."""
    reader = Path(__file__).with_name("what_services_have.py")
    words = [SERVICES / "bin" / "python", reader, out / "logs"]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout)


TRACES = """
import json, mlflow, sys
mlflow.set_tracking_uri(sys.argv[1])
traces = mlflow.search_traces(locations=["0"], max_results=500, return_type="list")
spans = [[(s.span_id, s.parent_id, s.name, s.start_time_ns, s.end_time_ns) for s in t.data.spans] for t in traces]
json.dump(spans, sys.stdout)
"""


def test_mlflow_takes_the_traces_of_all_episodes_as_a_collector_of_opentelemetry(mlflow: str, out: Path) -> None:
    words = [SERVICES / "bin" / "python", "-c", TRACES, mlflow]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    traces = [spans for spans in json.loads(found.stdout) if any(name == "trajectory" for _, _, name, _, _ in spans)]
    assert len(traces) == 16
    for spans in traces:
        times = {name: (begun, ended) for _, _, name, begun, ended in spans}
        assert {"reset", "turn 1", "generate", "environment", "store", "train"} <= times.keys()
        assert times["trajectory"][1] == times["store"][0] <= times["store"][1] <= times["train"][0] < times["train"][1]
        within = {span: (parent, begun, ended) for span, parent, _, begun, ended in spans}
        for parent, begun, ended in within.values():
            assert parent is None or within[parent][1] <= begun <= ended
            outer = None if parent is None else within[parent][0]
            assert outer is None or ended <= within[parent][2], "what happens in a turn ends with it"


def ask(address: str, what: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/{what}",
        json.dumps(body).encode() if body else None,
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_mlflow_has_every_number_the_keys_and_the_file(
    mlflow: str, out: Path, logged: dict[int, dict[str, float]]
) -> None:
    experiment = ask(mlflow, "experiments/get-by-name?experiment_name=sokobans")["experiment"]["experiment_id"]
    (run,) = ask(mlflow, "runs/search", experiment_ids=[experiment])["runs"]
    assert run["info"]["status"] == "FINISHED" and run["info"]["run_name"] == "small"
    parameters = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert parameters["seed"] == "42" and float(parameters["actor_train.training_args.learning_rate"]) == 5e-4
    names = {each["key"] for each in run["data"]["metrics"]}
    assert names == {name for row in logged.values() for name in row}
    for name in ("val/success", "train/loss", "reward/mean"):
        history = ask(mlflow, f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={name}")["metrics"]
        expected = {step: row[name] for step, row in logged.items() if name in row}
        assert {int(each["step"]): each["value"] for each in history} == expected
    written = f"{mlflow}/get-artifact?run_id={run['info']['run_id']}&path=config.yaml"
    with urllib.request.urlopen(written, timeout=60) as answer:
        assert "pretrain: toy_sokoban" in answer.read().decode()


@pytest.mark.parametrize("service", ["wandb", "swanlab"])
def test_a_service_that_is_offline_has_every_number_in_its_file(
    service: str, received: dict[str, dict[str, Any]], logged: dict[int, dict[str, float]]
) -> None:
    values = {int(step): row for step, row in received[service]["values"].items()}
    for step, row in logged.items():
        # The evaluation of a step says anew how long the run is: SwanLab keeps what was said first.
        assert {name: values[step][name] for name in row if name != "time/elapsed"} == {
            name: value for name, value in row.items() if name != "time/elapsed"
        }
    assert "toy_sokoban" in str(received[service]["config"])


def test_tensorboard_has_every_number_in_single_precision(out: Path, logged: dict[int, dict[str, float]]) -> None:
    board = EventAccumulator(str(out / "logs"), size_guidance={"scalars": 0})
    board.Reload()
    for name in {name for row in logged.values() for name in row}:
        found = {event.step: event.value for event in board.Scalars(name)}
        for step, row in logged.items():
            assert name not in row or math.isclose(found[step], row[name], rel_tol=1e-6, abs_tol=1e-12)
