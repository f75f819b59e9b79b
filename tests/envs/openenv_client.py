"""A client of the package openenv-core, which runs where that is installed: plays an episode and prints it as JSON."""

from __future__ import annotations

import json
import sys

from openenv.core.generic_client import GenericEnvClient

with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    first = env.reset(seed=int(sys.argv[2]))
    seen = [(first.observation["text"], first.reward, first.done)]
    for response in sys.argv[3:]:
        result = env.step({"response": response})
        seen.append((result.observation["text"], result.reward, result.done))
    print(json.dumps({"seen": seen, "instruction": first.observation["instruction"], "state": env.state()}))
