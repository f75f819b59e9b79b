"""A run that tracks with the real services; each is then asked, by means of its own, what it received.

Half of the run's episodes break and the others all earn the same, so that two alarms are given at the same step.

``python -m venv .venv/services && .venv/services/bin/python -m pip install -r tests/tracking/services.txt``
"""

from __future__ import annotations

import html
import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ROOT / ".venv" / "services"
PACKAGES = SERVICES / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
# Behind the packages of this environment: those that both have are these.
RUN = f"import sys; sys.path.append({str(PACKAGES)!r}); from roll.cli.app import main; main(sys.argv[1:])"
STEPS = 11
SMALL = [
    "train",
    "sokoban",
    "env_modules=still_or_breaking",
    "train_env_manager.tags=[still,breaking]",
    f"max_steps={STEPS}",
    f"eval_steps={STEPS}",
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

ENVIRONMENTS = """
from roll.envs import Outcome, TextEnv, register_env

@register_env("still", max_steps=2)
class Still(TextEnv):
    def start(self):
        return "Nothing moves."

    def step(self, response):
        observation, _, terminated, truncated, info = super().step(response)
        return observation, 0.0, terminated, truncated, {"metrics": info["metrics"]}

    def act(self, action):
        return Outcome("Nothing moves.", {})

@register_env("breaking", max_steps=2)
class Breaking(Still):
    def start(self):
        raise RuntimeError("down")
"""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.exhaustive,
    pytest.mark.heavy,
    pytest.mark.skipif(not SERVICES.exists() and "CI" not in os.environ, reason="there is no .venv/services"),
]


@contextmanager
def serving(folder: Path, words: Sequence[Any], sign: str, **variables: str) -> Iterator[str]:
    """Start a server, wait until it answers ``sign``, and give its address."""
    port = free_port()
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/{sign}", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, 9)
        server.wait()


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of MLflow's server."""
    words = [SERVICES / "bin" / "python", "-m", "mlflow", "server", "--workers", "1"]
    store = ["--backend-store-uri", "sqlite:///runs.db"]
    # Seven processes more, for what nobody asks of it here.
    without = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with serving(tmp_path_factory.mktemp("mlflow"), [*words, *store], "health", **without) as address:
        yield address


@pytest.fixture(scope="module")
def tensorboard(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of TensorBoard's server, which has read what the run logged."""
    words = [sys.executable, "-m", "tensorboard.main", "--logdir", out / "logs"]
    with serving(tmp_path_factory.mktemp("tensorboard"), words, "data/plugins_listing") as address:
        for _ in range(240):
            if "notes/2/text_summary" in asked(f"{address}/data/plugin/text/tags").get(".", ()):
                break
            time.sleep(0.5)
        yield address


def asked(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def out(mlflow: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that tracks with all of them."""
    folder = tmp_path_factory.mktemp("tracked")
    (folder / "still_or_breaking.py").write_text(ENVIRONMENTS)
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
        if "note" not in row:
            values.setdefault(row.pop("step"), {}).update(row)
    assert set(values) == set(range(STEPS + 1)) and "val/success" in values[STEPS] and "train/grad_norm" in values[1]
    return values


@pytest.fixture(scope="module")
def notes(out: Path) -> list[tuple[int, str]]:
    """The alarms that the run gave, with their steps."""
    rows = [json.loads(line) for line in (out / "logs" / "metrics.jsonl").read_text().splitlines()]
    found = [(row["step"], row["note"]) for row in rows if "note" in row]
    assert [step for step, _ in found] == [10, 10]
    assert found[0][1].startswith("50% of the episodes of the last 5 steps broke (error_env 50%)")
    assert found[1][1].startswith("In 100% of the groups of the last 5 steps all members earned the same")
    return found


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
about = [{s.name: [s.span_type, s.attributes.get("tokens")] for s in t.data.spans} for t in traces]
json.dump([spans, [[t.info.token_usage, each] for t, each in zip(traces, about)]], sys.stdout)
"""


def test_mlflow_takes_the_traces_of_all_episodes_as_a_collector_of_opentelemetry(mlflow: str, out: Path) -> None:
    words = [SERVICES / "bin" / "python", "-c", TRACES, mlflow]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    everything, described = json.loads(found.stdout)
    played = [(usage, about) for usage, about in described if "turn 1" in about]
    assert {(about["trajectory"][0], about["generate"][0]) for _, about in played} == {("AGENT", "CHAT_MODEL")}
    assert [usage["output_tokens"] for usage, _ in played] == [about["trajectory"][1] for _, about in played]
    assert all(usage["input_tokens"] > usage["output_tokens"] > 0 for usage, _ in played)
    traces = [spans for spans in everything if any(name == "trajectory" for _, _, name, _, _ in spans)]
    assert len(traces) == 8 * STEPS
    traces = [spans for spans in traces if any(name == "turn 1" for _, _, name, _, _ in spans)]
    assert len(traces) == 4 * STEPS, "half of them broke before it"
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
    for name in ("val/success", "train/learning_rate", "throughput/tokens_per_second"):
        history = ask(mlflow, f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={name}")["metrics"]
        expected = {step: row[name] for step, row in logged.items() if name in row}
        assert {int(each["step"]): each["value"] for each in history} == expected
    written = f"{mlflow}/get-artifact?run_id={run['info']['run_id']}&path=config.yaml"
    with urllib.request.urlopen(written, timeout=60) as answer:
        assert "pretrain: toy_sokoban" in answer.read().decode()


def test_mlflow_has_each_alarm_as_a_file_and_the_newest_as_a_tag(mlflow: str, notes: list[tuple[int, str]]) -> None:
    experiment = ask(mlflow, "experiments/get-by-name?experiment_name=sokobans")["experiment"]["experiment_id"]
    (run,) = ask(mlflow, "runs/search", experiment_ids=[experiment])["runs"]
    listed = ask(mlflow, f"artifacts/list?run_id={run['info']['run_id']}&path=notes")["files"]
    found = []
    for each in listed:
        with urllib.request.urlopen(
            f"{mlflow}/get-artifact?run_id={run['info']['run_id']}&path={each['path']}", timeout=60
        ) as answer:
            found.append((int(each["path"][len("notes/step=") :][:6]), answer.read().decode()))
    assert sorted(found) == sorted(notes)
    tags = {each["key"]: each["value"] for each in run["data"]["tags"]}
    assert tags["note"] == f"step 10: {notes[-1][1]}"


@pytest.mark.parametrize("service", ["wandb", "swanlab"])
def test_a_service_that_is_offline_has_each_alarm(
    service: str, received: dict[str, dict[str, Any]], notes: list[tuple[int, str]]
) -> None:
    assert [tuple(each) for each in received[service]["notes"]] == notes


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


def test_the_files_of_tensorboard_have_each_alarm_as_text(out: Path, notes: list[tuple[int, str]]) -> None:
    board = EventAccumulator(str(out / "logs"))
    board.Reload()
    events = [event for tag in ("notes", "notes/2") for event in board.Tensors(f"{tag}/text_summary")]
    assert [(event.step, make_ndarray(event.tensor_proto).item().decode()) for event in events] == notes


def test_a_server_of_tensorboard_shows_every_number(tensorboard: str, logged: dict[int, dict[str, float]]) -> None:
    (tags,) = asked(f"{tensorboard}/data/plugin/scalars/tags").values()
    assert set(tags) == {name for row in logged.values() for name in row}
    for name in ("val/success", "rollout/status/error_env", "alarm/errors", "time/rollout"):
        found = asked(f"{tensorboard}/data/plugin/scalars/scalars?run=.&tag={name}")
        expected = [(step, row[name]) for step, row in sorted(logged.items()) if name in row]
        assert [(step, value) for _, step, value in found] == [
            (step, pytest.approx(value, rel=1e-6)) for step, value in expected
        ]


def test_a_server_of_tensorboard_shows_the_alarms_and_the_configuration(
    tensorboard: str, notes: list[tuple[int, str]]
) -> None:
    def texts(tag: str) -> list[tuple[int, str]]:
        found = asked(f"{tensorboard}/data/plugin/text/text?run=.&tag={tag}/text_summary")
        return [(each["step"], html.unescape(re.sub("<[^>]*>", "", each["text"])).strip()) for each in found]

    assert texts("notes") + texts("notes/2") == notes
    ((step, config),) = texts("config")
    assert step == 0 and "pretrain: toy_sokoban" in config
