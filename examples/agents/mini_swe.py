"""mini-swe-agent mends a repository: one shell command at a time, in the folder that it is given."""

from __future__ import annotations

import json
import os

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

SYSTEM = """You mend programs. Answer with one shell command, in this form:

```mswea_bash_command
cat main.py
```"""
TASK = """{{task}}

When all is well, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"""

task = json.loads(os.environ["ROLL_TASK"])
model = LitellmTextbasedModel(model_name=f"openai/{os.environ['OPENAI_MODEL']}", cost_tracking="ignore_errors")
agent = DefaultAgent(model, LocalEnvironment(timeout=20), system_template=SYSTEM, instance_template=TASK, step_limit=6)
ended = agent.run(task["issue"])
print(ended.get("exit_status", ""))
