"""``roll doctor`` says what is there, what is missing, and whether a first run can work."""

from __future__ import annotations

import json
from importlib import util
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from roll.cli import doctor
from roll.cli.app import main
from roll.config import strategies
from roll.models import slow_bf16

pytestmark = pytest.mark.processes  # it asks the sandbox to prove itself


def roll(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["doctor", *words])
    return int(left.value.code or 0)


def test_it_finds_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert roll("--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["problems"] == [] and found["other_versions"] == []
    # What was built for a kind of device says so behind a plus, in one of both places or in both.
    assert found["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["strategies"]["hf_infer"] == {"ready": True, "install": None}
    assert found["devices"]["processors"] >= 1 and found["disk"]["free_gb"] > 0 and found["sandbox"]


@pytest.mark.parametrize(("slowdown", "said"), [(1.4, []), (61.2, ["takes this processor 61 times as long as fp32"])])
def test_it_says_where_bf16_is_slow(
    slowdown: float, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(slow_bf16, "bf16_slowdown", lambda: slowdown)
    assert roll() == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bf16 ")]
    assert [line.removeprefix("bf16").strip().split(":")[0] for line in lines] == said


def test_it_says_which_programs_run_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'no daemon\nis here' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert roll() == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "does not work" in lines["docker"] and "no daemon is here" in lines["docker"]
    assert lines["podman"].split(maxsplit=1)[1] == "not on PATH"
    program.write_text("""#!/bin/sh\necho '{"ServerVersion": "28.2"}'\n""")
    assert roll("--json") == 0
    assert json.loads(capsys.readouterr().out)["containers"]["docker"] == "works, Docker 28.2"


def test_what_is_missing_is_named_with_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = util.find_spec

    def find_spec(name: str) -> Any:
        if name == "megatron.core":
            raise ModuleNotFoundError(name="megatron")  # as Python does where megatron itself is missing
        return None if name in ("vllm", "ray") else real(name)

    for module in (doctor, strategies):
        monkeypatch.setattr(module, "find_spec", find_spec)
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name in ("ray", "transformers") else "1.0")
    assert roll() == 3
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[0] == "vllm" and "roll-rl[vllm]" in line for line in lines if line.strip())
    assert "ray        pip install 'roll-rl[ray]'" in lines
    assert lines[-2:] == ["A toy policy cannot be trained here:", "  transformers is missing: pip install transformers"]


def test_versions_that_roll_was_not_written_for_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, other = doctor.version_of, {"transformers": "5.0.0", "peft": "0.17.0", "torch": "2.13.0+cpu"}
    other["openai"] = "1.0.0"  # of no run: only tests need a newer one
    monkeypatch.setattr(doctor, "version_of", lambda name: other.get(name) or real(name))
    assert roll() == 0
    said = capsys.readouterr().out.partition("Not the versions that roll works with:\n")[2].splitlines()
    allowed = {each.name: str(each.specifier) for each in map(Requirement, requires("roll-rl") or ())}
    assert said[:2] == [
        f"  {name} is {other[name]}, and roll needs {allowed[name]}: pip install '{name}{allowed[name]}'"
        for name in ("peft", "transformers")
    ]
    assert said[2] == ""
