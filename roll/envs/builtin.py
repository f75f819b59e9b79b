"""The environment types and tags that come with the package."""

from __future__ import annotations

from typing import Any

import gymnasium

from roll.common.registry import Place
from roll.envs.base import THINK_ACTION_PATTERN
from roll.envs.registry import ENV_TYPES, TAGS, Tag

_TYPES = {
    "sokoban": "roll.envs.sokoban:SokobanEnv",
    "frozen_lake": "roll.envs.frozen_lake:FrozenLakeEnv",
    "problems": "roll.envs.problems:ProblemsEnv",
    "graded_problems": "roll.envs.graded:GradedProblemsEnv",
    "debate": "roll.envs.debate:DebateEnv",
    "agent": "roll.envs.agent:AgentEnv",
    "gymnasium_text": "roll.envs.adapters.gymnasium_text:GymnasiumTextEnv",
    "reasoning_gym": "roll.envs.adapters.reasoning_gym:ReasoningGymEnv",
    "textarena_duel": "roll.envs.adapters.textarena_duels:TextArenaDuelEnv",
    "textarena": "roll.envs.adapters.textarena_games:TextArenaEnv",
    "pettingzoo": "roll.envs.adapters.pettingzoo_games:PettingZooEnv",
    "bfcl": "roll.envs.adapters.bfcl_tasks:BfclEnv",
    "tau2": "roll.envs.adapters.tau2_tasks:Tau2Env",
    "tau2_duo": "roll.envs.adapters.tau2_seats:Tau2DuoEnv",
    "textworld": "roll.envs.adapters.textworld_games:TextWorldEnv",
    "open_adventure": "roll.envs.adapters.open_adventure:OpenAdventureEnv",
    "openenv": "roll.envs.adapters.openenv_servers:OpenEnvEnv",
    "nemo_gym": "roll.envs.adapters.nemo_gym_servers:NemoGymEnv",
    "verifiers": "roll.envs.adapters.verifiers_tasksets:VerifiersEnv",
    "minigrid": "roll.envs.adapters.minigrid_text:MiniGridEnv",
}

_GYMNASIUM_IDS = {
    "roll/Sokoban-v0": "roll.envs.sokoban:SokobanEnv",
    "roll/FrozenLake-v0": "roll.envs.frozen_lake:FrozenLakeEnv",
}

_THINK_TEMPLATE = (
    "Turn {turn_idx}:\n{observation}\nActions left: {actions_left}. "
    "Think within {max_response_length} tokens, then answer: <think>your thoughts</think><answer>your action</answer>"
)

_OTHER_SYMBOLS: dict[str, Any] = {
    "grid_lookup": {0: "W", 1: ".", 2: "G", 3: "C", 4: "B", 5: "A", 6: "@"},
    "grid_vocab": {
        "W": "wall",
        ".": "floor",
        "G": "target",
        "C": "box on target",
        "B": "box",
        "A": "player",
        "@": "player on target",
    },
}

_TAGS = (
    Tag("SimpleSokoban", "sokoban", {"dim_room": [6, 6], "num_boxes": 1}, max_steps=10, max_tokens_per_step=64),
    Tag("LargerSokoban", "sokoban", {"dim_room": [8, 8], "num_boxes": 2}, max_steps=30, max_tokens_per_step=64),
    Tag(
        "Boxoban",
        "sokoban",
        {"dim_room": [10, 10], "num_boxes": 4, "pushes": [8, 60]},
        max_steps=120,
        max_tokens_per_step=64,
    ),
    Tag(
        "SokobanDifferentGridVocab",
        "sokoban",
        {"dim_room": [6, 6], "num_boxes": 1, **_OTHER_SYMBOLS},
        max_steps=10,
        max_tokens_per_step=64,
    ),
    Tag("FrozenLake", "frozen_lake", {"size": 4, "is_slippery": False}, max_steps=10, max_tokens_per_step=64),
    Tag(
        "FrozenLakeThink",
        "frozen_lake",
        {"size": 4, "is_slippery": False, "action_pattern": THINK_ACTION_PATTERN},
        max_steps=10,
        max_tokens_per_step=256,
        agent_template=_THINK_TEMPLATE,
    ),
    Tag(
        "MultipleChoice",
        "graded_problems",
        {"file_name": "examples/data/multiple_choice_train.jsonl", "verifier": "multiple_choice"},
        max_steps=1,
        max_tokens_per_step=64,
    ),
    Tag(
        "Debate",
        "debate",
        {"file_name": "examples/data/word_problems_train.jsonl"},
        max_steps=2,
        max_tokens_per_step=256,
    ),
    Tag("Taxi", "gymnasium_text", {"game": "Taxi", "reward_scale": 0.05}, max_steps=30, max_tokens_per_step=64),
    Tag("Blackjack", "gymnasium_text", {"game": "Blackjack"}, max_steps=10, max_tokens_per_step=64),
    Tag(
        "CliffWalking",
        "gymnasium_text",
        {"game": "CliffWalking", "reward_scale": 0.01},
        max_steps=30,
        max_tokens_per_step=64,
    ),
    Tag("Countdown", "reasoning_gym", {"dataset": "countdown"}, max_steps=3, max_tokens_per_step=512),
    Tag("ChainSum", "reasoning_gym", {"dataset": "chain_sum"}, max_steps=1, max_tokens_per_step=256),
    Tag("MiniSudoku", "reasoning_gym", {"dataset": "mini_sudoku"}, max_steps=1, max_tokens_per_step=1024),
    Tag("KnightsAndKnaves", "reasoning_gym", {"dataset": "knights_knaves"}, max_steps=1, max_tokens_per_step=512),
    Tag(
        "GuessTheNumber",
        "textarena",
        {"game": "GuessTheNumber-v0", "actions": [f"[{number}]" for number in range(1, 21)]},
        max_steps=10,
        max_tokens_per_step=64,
    ),
    Tag(
        "TowerOfHanoi",
        "textarena",
        {"game": "TowerOfHanoi-v0", "actions": ["[A B]", "[A C]", "[B A]", "[B C]", "[C A]", "[C B]"]},
        max_steps=20,
        max_tokens_per_step=64,
    ),
    Tag("Mastermind", "textarena", {"game": "Mastermind-v0", "worst": 0.0}, max_steps=20, max_tokens_per_step=256),
    Tag("TextWorldHouse", "textworld", max_steps=30, max_tokens_per_step=64),
    Tag("ColossalCave", "open_adventure", max_steps=300, max_tokens_per_step=64),
    Tag(
        "TicTacToe",
        "textarena_duel",
        {"game": "TicTacToe-v0", "actions": [f"[{square}]" for square in range(9)]},
        max_steps=9,
        max_tokens_per_step=64,
    ),
    Tag("BabyAIGoTo", "minigrid", {"game": "BabyAI-GoToLocal-v0"}, max_steps=30, max_tokens_per_step=128),
    Tag("BabyAIPickUp", "minigrid", {"game": "BabyAI-PickupLoc-v0"}, max_steps=30, max_tokens_per_step=128),
    Tag("MiniGridEmpty", "minigrid", {"game": "MiniGrid-Empty-Random-5x5-v0"}, max_steps=20, max_tokens_per_step=128),
)


def register_builtin() -> None:
    """Add the built-in types and tags, and the Gymnasium ids; by name only, nothing is imported."""
    for name, path in _TYPES.items():
        ENV_TYPES.add_path(name, path)
    for tag in _TAGS:
        TAGS.add(tag.name, tag, place=Place(__name__))
    for env_id, path in _GYMNASIUM_IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=path)
