"""Tab in a real bash, with the script that ``roll --show-completion`` prints."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.terminal.terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; bind 'set show-all-if-ambiguous on'"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_tab_completes_commands_configurations_keys_and_values_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "roll"
    program.parent.mkdir()
    start = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom roll.cli.app import main\nmain()\n"
    program.write_text(f"#!{sys.executable}\n{start}")
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin"
    with Terminal(["bash", "--norc", "--noprofile", "-i"], tmp_path, columns=120, PATH=path, PS1="> ") as bash:
        bash.see("> ")
        bash.press(f'{SETTINGS}; eval "$(roll --show-completion bash)"; echo rea""dy\n'.encode())
        bash.see("ready")
        # Each Tab goes on from what the one before has written.
        bash.press(b"roll trai\t")
        bash.see("> roll train ")
        bash.press(b"frozen_lake_s\t")
        bash.see("> roll train frozen_lake_slippery ")
        bash.press(b"eval_ste\t")
        bash.see("> roll train frozen_lake_slippery eval_steps=")
        bash.press(b"4 old_log_p\t")
        bash.see("> roll train frozen_lake_slippery eval_steps=4 old_log_probs=")
        bash.press(b"s\t")
        bash.see("old_log_probs=sampler")
        bash.press(b"learning_r\t")
        bash.see("actor_train.training_args.learning_rate=")
        bash.press(b"\x15exit\n")
        bash.finish()
