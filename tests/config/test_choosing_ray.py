"""Runs whose roles need processes, and that do not say where they live."""

from __future__ import annotations

import warnings

import pytest

from roll.config import ConfigWarning, load

_TWO = {"actor_train.device_mapping": [0, 1], "num_gpus_per_node": 2}


def test_ray_is_chosen_where_a_role_needs_processes_and_said() -> None:
    with pytest.warns(ConfigWarning, match=r"cluster: it is ray, since the 2 workers of actor_train"):
        config = load("rlvr_math", overrides=_TWO)
    assert config.cluster == "ray"


@pytest.mark.parametrize("more", [{**_TWO, "cluster": "local"}, {"actor_infer.world_size": 2}, {}])
def test_a_run_stays_in_one_process_that_says_so_or_needs_no_other(more: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        config = load("rlvr_math", overrides=more)
    assert config.cluster == "local"
