"""Prints what W&B and SwanLab wrote offline: ``what_services_have.py LOGS``, run by the Python that has them.

Each is read by its own reader: W&B's is the program ``wandb leet inspect``, since its Python has none any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader

# It would tell its makers of errors.
ALONE = {"WANDB_ERROR_REPORTING": "false", "WANDB_BASE_URL": "http://127.0.0.1:9"}


def of_wandb(path: Path) -> dict[str, Any]:
    """Return the configuration, the values by step and name, and the alerts that a file of W&B has."""
    found: dict[str, Any] = {"config": {}, "values": {}, "notes": []}
    words = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", path]
    printed = subprocess.run(words, env={**os.environ, **ALONE}, capture_output=True, text=True, check=True).stdout
    for record in map(json.loads, printed.splitlines()):
        if record["type"] in ("run", "config"):
            part = record["config"] if record["type"] == "config" else record["run"].get("config", {})
            found["config"].update(part.get("update", {}))
        elif record["type"] == "history":
            row = record["history"]["item"]
            found["values"].setdefault(int(row["step"]), {}).update(row)
        elif record["type"] == "alert":
            alert = record["alert"]
            found["notes"].append([int(alert["title"].removeprefix("step ")), alert["text"]])
            assert alert["level"] == "WARN" and int(alert["wait_duration"]) < 10, alert
    return found


def of_swanlab(path: Path) -> dict[str, Any]:
    """Return the configuration, as it is written, the values and the texts that a file of SwanLab has."""
    config = (path.parent / "files" / "config.yaml").read_text()
    found: dict[str, Any] = {"config": config, "values": {}, "notes": []}
    reader = DataStoreReader()
    reader.open(path)
    for data in reader:
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "scalar":
            found["values"].setdefault(record.scalar.step, {})[record.scalar.key] = record.scalar.value.number
        elif record.WhichOneof("record_type") == "media":
            (item,) = record.media.value.items
            found["notes"].append([record.media.step, (path.parent / "media" / "text" / item.filename).read_text()])
    return found


if __name__ == "__main__":
    logs = Path(sys.argv[1])
    wandb, swanlab = next(logs.rglob("*.wandb")), next(logs.rglob("*.swanlab"))
    print(json.dumps({"wandb": of_wandb(wandb), "swanlab": of_swanlab(swanlab)}))
