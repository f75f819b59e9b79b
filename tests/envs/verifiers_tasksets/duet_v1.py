"""Two agents: one leads and is trained, the other answers what it said and is not."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["DuetEnv", "DuetTaskset"]


class DuetOptions(vf.EnvConfig):
    leads: vf.AgentConfig = vf.AgentConfig(harness=vf.HarnessConfig(id="null"))
    follows: vf.AgentConfig = vf.AgentConfig(harness=vf.HarnessConfig(id="null"))
    both: bool = False


class DuetTask(vf.Task):
    @vf.reward
    async def sang(self, trace: vf.Trace) -> float:
        return float("la" in trace.last_reply)


class DuetTaskset(vf.Taskset[DuetTask, vf.TasksetConfig]):
    def load(self) -> list[DuetTask]:
        return [DuetTask(vf.TaskData(prompt=f"Sing line {line}."), self.config.task) for line in range(3)]


class DuetEnv(vf.Env[DuetOptions]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.follows.trainable = self.config.both

    async def run(self, task: DuetTask, agents: vf.Agents) -> None:
        first = await agents.leads.run(task)
        await agents.follows.run(task.with_data(prompt=f"Go on: {first.last_reply}"))

    async def finalize(self, task: DuetTask, episode: vf.Episode) -> None:
        said = [trace.last_reply for trace in episode.traces]
        for trace in episode.traces:
            trace.record_reward("together", float(len(set(said)) == 1), 3.0 if trace.agent.name == "leads" else 1.0)
