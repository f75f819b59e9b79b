"""The teachers of ``toy_sokoban``, and the script that makes it."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import roll.envs
from roll.envs.sokoban import SokobanEnv, solve
from roll.envs.sokoban_levels import Level
from roll.envs.sokoban_solver import DIRECTIONS
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy.build_sokoban import RECIPES, Stage, build
from roll.models.toy.sokoban import SIGHT, Teacher, demonstrations, hasty, measure, near_sighted, perfect
from roll.rendering import ChatRenderer
from tests.rings import exhaustive_but

TOKENIZER = load_tokenizer("toy_sokoban")
RENDERER = ChatRenderer(TOKENIZER)
STAGES = (Stage(perfect, 0.25, 2, 1e-3), Stage(near_sighted, 0.0, 1, 1e-3))


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def level(seed: int) -> Level:
    env = roll.envs.make("SimpleSokoban")
    assert isinstance(env, SokobanEnv)
    env.reset(seed=seed)
    return env.state()


@pytest.mark.parametrize("seed", exhaustive_but(range(100), *range(20)))
def test_positions_are_as_far_from_the_solution_as_the_solver_says(seed: int) -> None:
    puzzle = measure(level(seed))
    solution = solve(puzzle.level)
    assert solution is not None and puzzle.left[puzzle.start] == len(solution)
    state = puzzle.start
    for action in solution[:-1]:
        assert puzzle.losses(*state)[DIRECTIONS.index(action)] == 0
        state = puzzle.after(*state, DIRECTIONS.index(action))


def test_a_move_loses_what_the_solver_needs_more_afterwards() -> None:
    env = roll.envs.make("SimpleSokoban")
    assert isinstance(env, SokobanEnv)
    lost = 0
    for seed in range(120):
        puzzle = measure(level(seed))
        for move, name in enumerate(DIRECTIONS):
            env.load(puzzle.level)
            env.act(name)
            after = solve(env.state())
            loss = puzzle.losses(*puzzle.start)[move]
            if after is None:
                assert loss == float("inf")
                lost += 1
            else:
                assert loss == len(after) + 1 - puzzle.left[puzzle.start]
    assert lost > 10


def fewest_moves(env: SokobanEnv, start: Level) -> int:
    """Search forwards, by playing."""
    seen, frontier, moves = {(start.boxes, start.player)}, [start], 0
    while frontier:
        moves += 1
        following = []
        for each in frontier:
            for name in DIRECTIONS:
                env.load(each)
                if env.act(name).success:
                    return moves
                after = env.state()
                if (after.boxes, after.player) not in seen:
                    seen.add((after.boxes, after.player))
                    following.append(after)
        frontier = following
    raise AssertionError("every level has a solution")


@pytest.mark.parametrize("seed", exhaustive_but(range(30), *range(8)))
def test_positions_with_two_boxes_are_as_far_from_the_solution_as_playing_says(seed: int) -> None:
    env = RECIPES["toy_larger_sokoban"].levels()
    env.reset(seed=seed)
    puzzle = measure(env.state())
    assert puzzle.level.boxes.bit_count() == 2
    assert puzzle.left[puzzle.start] == fewest_moves(env, puzzle.level)
    state = puzzle.start
    for left in range(puzzle.left[state], 1, -1):
        assert puzzle.left[state] == left
        state = puzzle.after(*state, puzzle.losses(*state).index(0))
    assert puzzle.is_solved(puzzle.after(*state, puzzle.losses(*state).index(0))[0])


def test_a_hasty_teacher_walks_at_a_box_that_is_not_on_a_target() -> None:
    rows = ["#######", "#_____#", "#P√_XO#", "#_____#", "#######"]
    puzzle = measure(Level.from_codes([["#_O√XPS".index(cell) for cell in row] for row in rows]))
    assert hasty(puzzle, *puzzle.start).tolist() == [0, 0, 0, 1]


def success(teacher: Teacher, levels: int = 150) -> float:
    """The share of levels that the teacher's likeliest moves solve in ten turns."""
    wins = 0
    for seed in range(levels):
        puzzle = measure(level(seed))
        state = puzzle.start
        for _ in range(10):
            if state not in puzzle.left:
                break
            state = puzzle.after(*state, int(np.argmax(teacher(puzzle, *state))))
            if puzzle.is_solved(state[0]):
                wins += 1
                break
    return wins / levels


def test_the_perfect_teacher_solves_what_can_be_solved_and_the_near_sighted_one_does_not() -> None:
    solvable = np.mean([len(solve(level(seed)) or [0] * 99) <= 10 for seed in range(150)])
    assert success(perfect) == pytest.approx(solvable)
    assert 0.5 < success(near_sighted) < 0.75


def test_the_near_sighted_teacher_prefers_a_best_move_only_near_the_solution() -> None:
    astray = 0
    for seed in range(100):
        puzzle = measure(level(seed))
        for state, left in puzzle.left.items():
            odds = near_sighted(puzzle, *state)
            assert odds.sum() == pytest.approx(1) and odds.min() > 0
            is_best = puzzle.losses(*state)[int(odds.argmax())] == 0
            assert is_best or left > SIGHT
            astray += not is_best
    assert astray > 100


def test_a_lesson_says_where_the_moves_are() -> None:
    played = demonstrations(RENDERER, encode, perfect, noise=0.25, random=np.random.default_rng(0))
    for game in itertools.islice(played, 20):
        assert game.odds.shape == (len(game.answers), 4)
        for place in game.answers:
            answer = TOKENIZER.decode(game.token_ids[place - 1 : place + 3])
            assert answer in {f"<answer>{name}</answer><|im_end|>" for name in DIRECTIONS}


@pytest.mark.parametrize("policy", RECIPES)
def test_every_cell_of_a_board_is_at_the_same_place_in_all_boards(policy: str) -> None:
    recipe, tokenizer = RECIPES[policy], load_tokenizer(policy)
    env, places = recipe.levels(), set()
    inner = range(1, recipe.side - 1)
    cells = [(recipe.side + 1) * row + column for row in inner for column in inner]
    for seed in range(100):
        board, _ = env.reset(seed=seed)
        spans = tokenizer(board, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        places.add(tuple(spans.index((cell, cell + 1)) for cell in cells))
    assert len(places) == 1


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.parametrize("policy", RECIPES)
def test_the_build_is_reproducible_on_any_number_of_threads(policy: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        for name, count in (("first", 1), ("second", 2)):
            torch.set_num_threads(count)
            build(tmp_path / name, policy, stages=STAGES, batch_size=2)
    finally:
        torch.set_num_threads(threads)
    assert digests(tmp_path / "first") == digests(tmp_path / "second")
    shipped = digests(RECIPES[policy].weights)
    assert digests(tmp_path / "first")["tokenizer.json"] == shipped["tokenizer.json"]


@pytest.mark.parametrize("policy", RECIPES)
def test_the_shipped_policy_fits_its_tokenizer_and_its_budget(policy: str) -> None:
    model = load_model(policy)
    assert model.config.vocab_size == len(load_tokenizer(policy))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(path.stat().st_size for path in RECIPES[policy].weights.iterdir()) < 4 * 2**20
