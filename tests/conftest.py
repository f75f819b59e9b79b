"""Shared set-up: the process settings of a real run, two threads at most, no network."""

import os

from roll.config.process import prepare_process

prepare_process()
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
