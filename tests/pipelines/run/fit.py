"""A kind of run that samples nothing: it fits a line to fixed points. Also a program, to be killed half-way."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from roll.config import RunConfig
from roll.distributed import Cluster
from roll.pipelines.run.life_cycle import Run
from roll.tracking import RunSummary

POINTS = torch.linspace(-1, 1, 8).unsqueeze(1)


class Fit(Run[RunConfig]):
    """Fits ``3 x - 1``, with noise from torch's generator, so that a resume must restore that too."""

    killed_at: int | None = None

    async def assemble(self, cluster: Cluster) -> None:
        torch.manual_seed(self.config.seed)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

    async def step(self, step: int) -> None:
        if step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        noisy = POINTS + 0.1 * torch.randn_like(POINTS)
        with self.changing(step):
            loss = (self.model(noisy) - (3 * POINTS - 1)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.log.step(step, {"loss": loss.item()})

    async def evaluate(self, step: int) -> None:
        self.log.evaluation(step, {"val/reward": -(self.model(POINTS) - (3 * POINTS - 1)).abs().mean().item()})

    async def save_state(self, folder: Path) -> None:
        torch.save([self.model.state_dict(), self.optimizer.state_dict(), torch.get_rng_state()], folder / "fit.pt")

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        model, optimizer, random = torch.load(folder / "fit.pt")
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        torch.set_rng_state(random)


def fit(folder: Path, **changes: Any) -> RunSummary:
    """Fit for ten steps; a checkpoint every three."""
    keys = {"max_steps": 10, "save_steps": 3, "eval_steps": 5, "progress": "none", "track_with": ["jsonl"]}
    return Fit.start(RunConfig.model_validate({"output_dir": str(folder), **keys, **changes}))


if __name__ == "__main__":
    Fit.killed_at = 8
    print(*sorted(sys.modules), flush=True)
    fit(Path(sys.argv[1]))
