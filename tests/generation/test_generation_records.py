import asyncio
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest

from roll.generation import Activity, NoActivity, SamplingParams, generation_seed


def test_the_sampling_key_is_one_number_per_turn_and_the_same_in_every_process() -> None:
    keys = {generation_seed(*each) for each in product((0, 1), ("1", "11"), (1, 11), (0, 1))}
    assert len(keys) == 16 and all(0 <= key < 1 << 64 for key in keys)
    assert generation_seed(5, "g", 0, 2) == 15909264565223561508


@pytest.mark.processes
def test_requests_are_made_without_torch_ray_or_the_rest_of_roll() -> None:
    code = "import sys, roll.generation; print({'torch', 'ray', 'numpy', 'pydantic', 'roll.config'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_sampling_within_a_place_has_the_smaller_limit_and_all_stop_tokens_once() -> None:
    sampling = SamplingParams(max_new_tokens=20, temperature=0.5, top_p=0.9, top_k=4, stop_token_ids=(3, 2))
    expected = replace(sampling, stop_token_ids=(2, 9, 3))
    assert sampling.within(50, (2, 9)) == expected
    assert sampling.within(8, (2, 9)) == replace(expected, max_new_tokens=8)


def test_an_episode_is_outside_the_engine_until_its_block_ends_even_by_an_error() -> None:
    activity = Activity()
    with pytest.raises(ZeroDivisionError), activity.outside_engine(), activity.outside_engine():
        assert activity.outside == 2
        raise ZeroDivisionError
    assert activity.outside == 0


def test_without_activity_nothing_is_counted_and_it_is_always_quiet() -> None:
    nobody = NoActivity()
    with nobody.outside_engine():
        assert nobody.outside == 0
        asyncio.run(nobody.quiescent())
    nobody.leave_env()
