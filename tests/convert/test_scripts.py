"""Launch scripts, read without running them: held against what bash itself hands to the program."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from roll.config.errors import ConfigError
from roll.convert import convert, read
from roll.convert.reading.overrides import is_override, tree_of
from roll.convert.reading.shell import read_script

_PLAIN = """#!/bin/bash
set -x
# a remark, with 'a quote
NAME=qwen3   # behind a command
SIZE=${SIZE:-8B}
export ROOT=/data/${NAME}-"$SIZE"
BATCH=$((64 * 2 / (1 + 3)))
python3 -m verl.trainer.main_ppo \\
    data.train_files="$ROOT/train.parquet" \\
    data.train_batch_size=$BATCH \\
    'trainer.logger=["console","wandb"]' \\
    trainer.experiment_name=${NAME##*w}_${ROOT%/*} \\
    +actor_rollout_ref.model.path=${MODEL-some/model} "$@" 2>&1 | tee log_${NAME}.txt
"""

_LISTS = """#!/usr/bin/env bash
DATA=(
    data.train_files=/x/train.parquet   # the files
    data.max_prompt_length=512
)
DATA+=("data.prompt_key=a b")
MORE="trainer.nnodes=1 trainer.n_gpus_per_node=8"
if [ "$GPUS" = "" ]; then OFFLOAD=True; else OFFLOAD=False; fi
if [[ $OFFLOAD == F* ]]; then
    DATA+=(data.seed=1)
elif [ ${#DATA[@]} -ge 3 ]; then
    DATA+=(data.seed=2)
fi
case "$MODE" in
  "") KIND=sync ;;
  *) KIND=async ;;
esac
for seed in 7 8; do
  python -m verl.trainer.main_ppo "${DATA[@]}" $MORE actor_rollout_ref.rollout.mode=$KIND trainer.seed=$seed \\
      actor_rollout_ref.actor.fsdp_config.param_offload=$OFFLOAD $@
  break
done
"""

_DOCUMENT = """#!/bin/bash
LR=1e-5
cat > job.yaml <<EOF
algorithm: {algorithm_type: grpo, optimizer: {lr: $LR}}
name: "\\$5 off"
EOF
trinity run --config job.yaml
"""


def _handed_over(script: Path) -> list[str]:
    """Return what bash gives to a program of the name ``python``, which does nothing but write it down."""
    folder = script.parent / "bin"
    folder.mkdir()
    for name in ("python", "python3"):
        stub = folder / name
        stub.write_text('#!/bin/bash\nprintf "%s\\0" "$@" >> "$RECORD"\n')
        stub.chmod(0o755)
    record = script.parent / "record"
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "RECORD": str(record)}
    subprocess.run(["bash", str(script)], env=environment, cwd=script.parent, check=False, capture_output=True)
    return record.read_bytes().decode().split("\0")[:-1]


@pytest.mark.processes
@pytest.mark.parametrize("text", [_PLAIN, _LISTS], ids=["plain", "lists"])
def test_the_words_are_those_that_bash_hands_over(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIZE", "MODEL", "GPUS", "MODE"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "run.sh"
    script.write_text(text)

    program, *words = _handed_over(script)[1:]

    read_so = read_script(script)
    assert (read_so.program, read_so.unread) == (program, ())
    assert read_so.tree == tree_of([word for word in words if is_override(word)])


def test_a_file_that_the_script_writes_itself_is_read(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(_DOCUMENT)

    assert read_script(script).tree == {
        "algorithm": {"algorithm_type": "grpo", "optimizer": {"lr": 1e-5}},
        "name": "$5 off",
    }
    assert not (tmp_path / "job.yaml").exists()


def test_nothing_in_a_script_is_run(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        f"touch {tmp_path}/one\nA=$(touch {tmp_path}/two; echo 3)\nB=`touch {tmp_path}/three`\n"
        "python -m verl.trainer.main_ppo data.seed=1 data.prompt_key=$A\n"
    )

    found = read_script(script)

    assert found.tree["data"]["seed"] == 1
    assert any("touch" in note for note in found.unread)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]


def test_overrides_change_the_template_that_a_script_names(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "template" / "grpo.yaml").write_text("runtime_args: {num_episode: 5, exp_name: a}\nmodels: {}\n")
    script = tmp_path / "scripts" / "train.sh"
    script.write_text("python entry.py grpo --config-file template/grpo.yaml runtime_args.exp_name=b\n")

    assert read([script]).tree["runtime_args"] == {"num_episode": 5, "exp_name": "b"}


def test_a_variable_that_only_the_other_machine_knows_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "run.sh"
    script.write_text(
        "python -m verl.trainer.main_ppo data.train_files=x.parquet data.val_files=$HERE_NOT/v.parquet "
        "actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=${GPUS_OF_IT}\n"
    )

    conversion = convert(read([script]))

    assert conversion.ok, conversion.problems
    states = {key.key: key for key in conversion.keys}
    assert states["data.val_files"].state == "translated"
    assert states["trainer.n_gpus_per_node"].state == "impossible"
    assert "GPUS_OF_IT" in states["trainer.n_gpus_per_node"].why
    assert json.dumps(conversion.native, default=str).count("GPUS_OF_IT") == 0


def test_a_script_that_trains_nothing_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\necho hello\npython prepare.py --out x\n")

    with pytest.raises(ConfigError, match="starts no program that trains"):
        read_script(script)
