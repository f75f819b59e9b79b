"""Engines and trainers of a user's own are names in configurations, and no other name is known outside of a folder."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import roll
from roll.common.registry import DuplicateNameError
from roll.config import ConfigError, load
from roll.config.strategies import is_installed, named
from roll.generation import SamplingParams
from roll.pipelines.agentic import run_agentic
from roll.pipelines.checks.agentic import check_agentic
from roll.strategies import STRATEGIES, Ability, EngineJob, StrategyDescription, register_strategy
from roll.strategies.building import build_engine
from roll.strategies.generation.sampling_limits import Refusal

PACKAGE = Path(roll.__file__).parent

TRAINER = '''
from roll.strategies import StrategyDescription, TrainerJob, register_strategy

def build(job: TrainerJob):
    from roll.strategies.training.pytorch.train import FsdpTrainStrategy

    class Counting(FsdpTrainStrategy):
        """Trains as its base does, and says how often."""

        steps = 0

        def train_step(self, batch, loss, totals=None):
            self.steps += 1
            return super().train_step(batch, loss, totals) | {"mine/steps": float(self.steps)}

    return Counting(job.load(), job.options, predicts=job.predicts)

SCORER = "roll.strategies.training.pytorch.build:scorer"
register_strategy(StrategyDescription(name="counting", trainer=build, scorer=SCORER))
'''

SMALL = {
    "max_steps": 1,
    "save_steps": 0,
    "eval_steps": 0,
    "rollout_batch_size": 4,
    "train_env_manager": {"env_groups": 2, "group_size": 2, "tags": ["SimpleSokoban"], "max_traj_per_env": 1},
    "custom_envs": {"SimpleSokoban": {"env_type": "sokoban"}},
    "max_actions_per_traj": 2,
    "max_tokens_per_step": 4,
    "track_with": ["jsonl"],
    "progress": "none",
}


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    with STRATEGIES.restored():
        yield
    sys.modules.pop("my_trainer", None)


@pytest.fixture
def my_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The keys of a run with a trainer that a module of the working directory registers."""
    (tmp_path / "my_trainer.py").write_text(TRAINER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return {
        **SMALL,
        "output_dir": str(tmp_path / "out"),
        "strategy_modules": ["my_trainer"],
        "actor_train": {"strategy_args": {"strategy_name": "counting"}},
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::roll.config.ConfigWarning")
def test_a_trainer_of_a_users_own_trains_a_run(my_trainer: dict[str, Any], tmp_path: Path) -> None:
    run_agentic(load(my_trainer))
    (step,) = [json.loads(line) for line in (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert any(name.endswith("mine/steps") and value == 1.0 for name, value in step.items())


def test_what_a_trainer_does_not_do_is_refused_before_a_model_loads(my_trainer: dict[str, Any]) -> None:
    my_trainer["actor_train"]["model_args"] = {"lora_rank": 4}
    my_trainer["actor_train"]["use_sequence_packing"] = True
    with pytest.raises(ConfigError) as caught:
        check_agentic(load(my_trainer))
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["actor_train.model_args.lora_rank", "actor_train.use_sequence_packing"]


def test_an_unknown_name_and_a_module_that_is_not_there_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'vllm'(.|\n)*strategy_modules"):
        load({"actor_infer": {"strategy_args": {"strategy_name": "vlm"}}})
    # It can be read where the module is not, but not run.
    there_not = {
        "strategy_modules": ["no_such_module_of_mine"],
        "actor_infer": {"strategy_args": {"strategy_name": "x"}},
    }
    with pytest.raises(ConfigError, match="cannot import no_such_module_of_mine") as caught:
        check_agentic(load(there_not))
    assert [problem.path for problem in caught.value.problems] == [
        "strategy_modules",
        "actor_infer.strategy_args.strategy_name",
    ]


def test_an_engine_cannot_serve_a_role_that_trains() -> None:
    register_strategy(StrategyDescription(name="mine", engine=object))
    assert load({"actor_infer": {"strategy_args": {"strategy_name": "mine"}}}).actor_infer.strategy_args.about.abilities
    with pytest.raises(ConfigError, match="cannot serve actor_train"):
        load({"actor_train": {"strategy_args": {"strategy_name": "mine"}}})


def test_sampling_that_an_engine_of_a_users_own_refuses_is_said_before_a_model_loads() -> None:
    def refusals(sampling: SamplingParams) -> Iterator[Refusal]:
        if sampling.top_k:
            yield Refusal("top_k", "mine has no top_k", "leave it out")

    register_strategy(StrategyDescription(name="mine", engine=object, refusals=refusals))
    infer = {"strategy_args": {"strategy_name": "mine"}, "generating_args": {"top_k": 5}}
    with pytest.raises(ConfigError, match="mine has no top_k") as caught:
        check_agentic(load({"actor_infer": infer}))
    assert [problem.path for problem in caught.value.problems] == ["actor_infer.generating_args.top_k"]


def test_a_builder_that_makes_something_else_is_told_what_it_lacks() -> None:
    register_strategy(StrategyDescription(name="mine", engine=lambda job: object()))
    with pytest.raises(TypeError, match="no GenerationStrategy: add abort, close, generate"):
        build_engine("mine", EngineJob(folder=str, load=lambda: None))  # type: ignore[arg-type,return-value]


def test_names_that_are_taken_and_strategies_that_do_nothing_are_refused() -> None:
    with pytest.raises(DuplicateNameError, match="vllm"):
        register_strategy(StrategyDescription(name="vllm", engine=object))
    with pytest.raises(ValueError, match="does nothing"):
        StrategyDescription(name="idle")


def test_every_description_has_the_name_that_it_is_found_by_and_builders_that_are_there() -> None:
    for name in STRATEGIES:
        about = STRATEGIES.get(name)
        assert about.name == name
        assert (about.instead or name) in STRATEGIES
        assert Ability.TRAIN not in about.abilities or about.trains_critics
        if about.package and not is_installed(about.package):
            continue
        functions = (about.engine, about.trainer, about.scorer, about.check_options, about.refusals)
        assert all(callable(named(function)) for function in functions if function is not None)


@pytest.mark.processes
def test_a_description_loads_neither_torch_nor_an_engine() -> None:
    code = (
        "import sys; from roll.strategies import STRATEGIES; [STRATEGIES.get(name) for name in STRATEGIES]; "
        "print([name for name in 'torch ray transformers vllm deepspeed megatron'.split() if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.long
def test_nothing_outside_of_its_folder_knows_a_strategy_by_name() -> None:
    # Where names are listed, what a run has by default, and what guides say in words of their own.
    may = {PACKAGE / "config" / "strategies.py", PACKAGE / "config" / "worker.py"}
    may.add(PACKAGE / "replay" / "stage.py")  # which engine draws the same tokens again, and stands in for the others
    names = {registration.name for registration in STRATEGIES.registrations() if registration.is_built_in}
    names |= {"fsdp", "deepspeed", "megatron"}
    known: list[str] = []
    for file in PACKAGE.rglob("*.py"):
        inside = file.relative_to(PACKAGE).parts
        if file in may or inside[0] == "strategies" or inside[:2] == ("config", "dialects"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in names:
                known.append(f"{file}:{node.lineno}: {node.value}")
    assert known == []
