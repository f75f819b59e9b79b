import subprocess
import sys
from itertools import product

from roll.generation import generation_seed


def test_the_sampling_key_is_one_number_per_turn_and_the_same_in_every_process() -> None:
    keys = {generation_seed(*each) for each in product((0, 1), ("1", "11"), (1, 11), (0, 1))}
    assert len(keys) == 16 and all(0 <= key < 1 << 64 for key in keys)
    assert generation_seed(5, "g", 0, 2) == 15909264565223561508


def test_requests_are_made_without_torch_ray_or_the_rest_of_roll() -> None:
    code = "import sys, roll.generation; print({'torch', 'ray', 'numpy', 'pydantic', 'roll.config'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
