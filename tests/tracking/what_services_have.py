"""Prints what W&B and SwanLab wrote offline: ``what_services_have.py LOGS``, run by the Python that has them.

W&B has no reader of its own files any more; SwanLab has one of them, and one of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from swanlab.converter.wb.utils import proto_items_to_dict
from swanlab.converter.wb.wbdatastore import WBDataStoreReader
from swanlab.proto.swanlab.record.v1.record_pb2 import Record as SwanlabRecord
from swanlab.sdk.internal.core_python.store import DataStoreReader
from wandb.proto.wandb_internal_pb2 import Record as WandbRecord


def of_wandb(path: Path) -> dict[str, Any]:
    """Return the configuration and, by step and name, the values that a file of W&B has."""
    found: dict[str, Any] = {"config": {}, "values": {}}
    with WBDataStoreReader() as reader:
        reader.open(path)
        while (data := reader.scan()) is not None:
            record = WandbRecord.FromString(data)
            if record.WhichOneof("record_type") == "config":
                found["config"].update(proto_items_to_dict(record.config.update))
            elif record.WhichOneof("record_type") == "history":
                row = proto_items_to_dict(record.history.item)
                found["values"].setdefault(row["step"], {}).update(row)
    return found


def of_swanlab(path: Path) -> dict[str, Any]:
    """Return the configuration, as it is written, and the values that a file of SwanLab has."""
    found: dict[str, Any] = {"config": (path.parent / "files" / "config.yaml").read_text(), "values": {}}
    reader = DataStoreReader()
    reader.open(path)
    for data in reader:
        record = SwanlabRecord.FromString(data)
        if record.WhichOneof("record_type") == "scalar":
            found["values"].setdefault(record.scalar.step, {})[record.scalar.key] = record.scalar.value.number
    return found


if __name__ == "__main__":
    logs = Path(sys.argv[1])
    wandb, swanlab = next(logs.rglob("*.wandb")), next(logs.rglob("*.swanlab"))
    print(json.dumps({"wandb": of_wandb(wandb), "swanlab": of_swanlab(swanlab)}))
