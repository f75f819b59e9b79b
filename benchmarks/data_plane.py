"""What a step costs the driver, and how long its tokens are on their way: ``python benchmarks/data_plane.py``.

Everything is as in a run with ``cluster: ray`` (a worker that plays, the learner, ranks that train, all as Ray actors)
except that nothing is computed: episodes are made up, and a rank reads every byte it is sent and answers with zeros.
Many ranks share two processes; each is called by itself and sent its own rows.

* ``driver MB / 1,000``: what the driver packs and unpacks per 1,000 samples. Target: at most 1 MB.
* ``driver GB``: the most memory it had, less what it had before; it stays as it is however large the step.
* ``s/step``: of a second step, from the outlines of all episodes to the end of the update: the batch, log-probs,
  advantages, the update, and what is kept of them on disk.
* ``CPU s``: the processor time of all processes for it, which other work on the machine changes less.
* ``batch``: the seconds of it until the batch is made and its log-probs can be asked for.
* ``ranks``: the seconds of it in which ranks are asked: rows are dealt, sent, read and answered, and the answers put in
  order. The rest is arithmetic over whole batches (credit, measures, mini-batches), and the writing of files.
* ``× copy``: ``ranks`` over the time of a plain copy of the bytes that ranks were sent and answered, into memory that
  was written to before. Target: at most 1.5.
* ``× Ray``: ``ranks`` over the time that Ray alone takes: as many calls of plain actors in as many processes, each
  given an array of as many bytes, which it reads, and answering with as many as ours.
* ``step``: ``s/step`` over the time of the plain copy.

``--driver`` measures the same where all tokens go through the driver (``data_plane: driver``).
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from roll.config.process import prepare_process

prepare_process({"OMP_NUM_THREADS": "1"})
os.environ.setdefault("RAY_worker_niceness", "0")

import numpy as np  # noqa: E402
import psutil  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from tensordict import TensorDict  # noqa: E402

from roll.config import AgenticConfig  # noqa: E402
from roll.distributed import WorkerSpec, open_cluster, ray_group  # noqa: E402
from roll.models.loading import load_tokenizer  # noqa: E402
from roll.pipelines.learning.elsewhere import LearnerElsewhere  # noqa: E402
from roll.pipelines.learning.learner import Learner  # noqa: E402
from roll.pipelines.roles.models import TrainRole  # noqa: E402
from roll.strategies.base import Loss  # noqa: E402
from roll.tracking import NullProgress  # noqa: E402
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn  # noqa: E402
from roll.trajectories.sealed import seal  # noqa: E402
from roll.workers.setup import Registered  # noqa: E402
from roll.workers.train import DataPlace  # noqa: E402

GROUP = 8
PROCESSES = 2
"""Of the ranks."""


class Player:
    """Makes episodes up.

    Args:
        tokens: Of an episode.
        parcels: Where it puts them; ``None`` returns them.
    """

    def __init__(self, tokens: int, parcels: Any) -> None:
        self._parcels = parcels
        half = tokens // 2
        ids = np.random.default_rng(0).integers(0, 100, half).tolist()
        self._turn = {"prompt_ids": ids, "completion_ids": [*ids], "logprobs": [-0.5] * half}

    async def play(self, group: str, member: int) -> Trajectory:
        """Return an episode of one turn."""
        turn = Turn(**self._turn, policy_version=(1, 1), observation="o", response="r", reward=float(member % 2))
        played = Trajectory("Made", group, member, 0, turns=[turn], status=Status.COMPLETED, score=float(member % 2))
        return played if self._parcels is None else await seal(played, self._parcels.put)


class Ranks:
    """Reads what ranks are sent, and computes nothing."""

    def __init__(self) -> None:
        self._bytes = [0, 0, 0]
        self._zeros = torch.zeros(0)  # such memory costs more to get than to send
        self._asked: list[tuple[float, float]] = []

    def compute_log_probs(self, batch: TensorDict) -> torch.Tensor:
        """Return zeros for the rows of one rank."""
        self._bytes[0] += self._read(batch)
        rows, width = batch["input_ids"].shape
        if self._zeros.numel() < rows * width:
            self._zeros = torch.zeros(rows * width)
        zeros = self._zeros[: rows * width].view(rows, width)
        self._bytes[1] += zeros.nbytes
        return zeros

    def train_step(self, batch: TensorDict, loss: object, totals: object) -> dict[str, float]:
        """Take no step."""
        self._bytes[2] += self._read(batch)
        return {"loss": 0.0}

    def note(self, begun: float, ended: float) -> None:
        """Take note of when all ranks were asked."""
        self._asked.append((begun, ended))

    def asked(self) -> list[tuple[float, float]]:
        """Return what was noted, on the clock of the machine."""
        return self._asked

    def moved(self) -> list[int]:
        """Return the bytes that came to be scored, went back, and came to be learned from."""
        return self._bytes

    def _read(self, batch: TensorDict) -> int:
        for column in batch.values():
            column.reshape(len(column), -1).view(torch.uint8)[:, :: os.sysconf("SC_PAGE_SIZE")].sum()
        return sum(column.nbytes for column in batch.values())


class PlainRanks:
    """What is moved by Ray alone."""

    def __init__(self) -> None:
        self._zeros = np.zeros(0, np.uint8)

    def answer(self, sent: NDArray[np.uint8], back: int) -> NDArray[np.uint8]:
        """Read bytes, and return as many zeros as are wanted."""
        sent[:: os.sysconf("SC_PAGE_SIZE")].sum()
        if len(self._zeros) < back:
            self._zeros = np.zeros(back, np.uint8)
        return self._zeros[:back]


class ManyRanks:
    """Many ranks in few processes; a group of workers as far as roles call it."""

    def __init__(self, calls: Any, size: int) -> None:
        self.calls_to, self.size, self.role = calls, size, "actor_train"

    def calls(self) -> ManyRanks:
        """Return what other workers can be given."""
        return self

    async def each(self, method: str, args: Sequence[tuple[Any, ...]], *, timeout: float | None = None) -> list[Any]:
        """Call a method for every rank."""
        calls = (self.calls_to.one(rank % PROCESSES, method, *own) for rank, own in enumerate(args))
        return list(await asyncio.gather(*calls))


class TimedRole(TrainRole):
    """Tells the first rank how long each call took, of which it knows nothing in another process."""

    async def compute_log_probs(self, batch: TensorDict) -> torch.Tensor:
        """See the class."""
        begun = time.monotonic()
        answer = await super().compute_log_probs(batch)
        await self._note(begun)
        return answer

    async def train_step(self, batch: TensorDict, loss: Loss) -> dict[str, float]:
        """See the class."""
        begun = time.monotonic()
        answer = await super().train_step(batch, loss)
        await self._note(begun)
        return answer

    async def _note(self, begun: float) -> None:
        group: Any = self.group
        await group.calls_to.one(0, "note", begun, time.monotonic())


@dataclass
class Counted:
    """The bytes that this process packs and unpacks."""

    bytes: int = 0

    def install(self) -> None:
        """Begin to count."""
        pack, unpack = ray_group.pack, ray_group.unpack

        def counted(packed: Any) -> Any:
            lent = 0 if packed.loan is None else packed.loan.size
            self.bytes += len(packed.data) + sum(memoryview(buffer).nbytes for buffer in packed.buffers) + lent
            return packed

        ray_group.pack = lambda value: counted(pack(value))
        ray_group.unpack = lambda packed: unpack(counted(packed))


async def measure(samples: int, tokens: int, ranks: int, by_workers: bool) -> dict[str, float]:
    """Run one step and measure it."""
    config = AgenticConfig.model_validate(
        {
            "pretrain": "toy",
            "cluster": "ray",
            "data_plane": "workers" if by_workers else "driver",
            "adv_estimator": "grpo",
            "sequence_length": tokens + 8,
            "response_length": 8,
            "rollout_batch_size": samples,
            "train_env_manager": {"env_groups": samples // GROUP, "group_size": GROUP, "tags": ["SimpleSokoban"]},
            "actor_train": {
                "world_size": PROCESSES,
                "training_args": {
                    "per_device_train_batch_size": 1,
                    "gradient_accumulation_steps": samples // PROCESSES,
                },
            },
            "eval_steps": 0,
            "rpc_timeout": 1800,
        }
    )
    async with open_cluster(config) as cluster:
        group = await cluster.start("actor_train", WorkerSpec(cls=Ranks))
        places = [DataPlace(rank, ranks) for rank in range(ranks)]
        trainer = TimedRole(ManyRanks(group.calls(), ranks), places)  # type: ignore[arg-type]
        core: Any = SimpleNamespace(trainer=trainer, critic=None, reference=None, tokenizer=load_tokenizer("toy"))
        learner: Any = Learner(config, core, NullProgress())
        parcels = None
        if by_workers:
            learner = await LearnerElsewhere.start(cluster, learner, Registered.here())
            parcels = learner.parcels
        players = await cluster.start("train_env_manager", WorkerSpec(cls=Player, args=(tokens, parcels)))
        counted, before = Counted(), psutil.Process().memory_info().rss
        counted.install()
        begun = time.perf_counter()
        groups = []
        for number in range(samples // GROUP):
            name = f"g{number}"
            members = [players.one(0, "play", name, member) for member in range(GROUP)]
            groups.append(TrajectoryGroup(name, "Made", list(await asyncio.gather(*members))))
        passed = time.perf_counter() - begun
        await learner.learn(learner.make_batch(groups), 1)  # ranks import what they unpack
        through = counted.bytes
        first, asked_before = np.sum(await group.all("moved"), axis=0), len(await group.one(0, "asked"))
        busy, before_second = processor_time(), time.monotonic()
        await learner.learn(learner.make_batch(groups), 2)
        learned, busy = time.monotonic(), processor_time() - busy
        asked = (await group.one(0, "asked"))[asked_before:]
        moved = np.sum(await group.all("moved"), axis=0) - first
        peak = int(Path("/proc/self/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) * 1024
        by_ray = await ray_alone([(moved[0], moved[1]), (moved[2], 0)], ranks)
    return {
        "driver_mb": through / 1e6 / samples * 1000,
        "driver_gb": (peak - before) / 1e9,
        "play": passed,
        "step": learned - before_second,
        "cpu": busy,
        "batch": asked[0][0] - before_second,
        "ranks": sum(ended - begun for begun, ended in asked),
        "moved_gb": moved.sum() / 1e9,
        "copy": plain_copy(int(moved.sum())),
        "ray": by_ray,
    }


async def ray_alone(rounds: Sequence[tuple[int, int]], ranks: int) -> float:
    """Return the seconds in which plain actors are given bytes and answer with some, the second time.

    Args:
        rounds: How many bytes go to all ranks together and come back, one round behind the other.
        ranks: How many share them.
    """
    actors = [ray.remote(PlainRanks).options(num_cpus=0).remote() for _ in range(PROCESSES)]
    source = np.ones(max(sent for sent, _ in rounds), np.uint8)
    for _ in range(2):
        begun = time.perf_counter()
        for sent, back in rounds:
            shares = np.array_split(source[:sent], ranks)
            asked = [actors[rank % PROCESSES].answer.remote(own, back // ranks) for rank, own in enumerate(shares)]
            np.concatenate(await asyncio.gather(*asked))
        passed = time.perf_counter() - begun
    return passed


def processor_time() -> float:
    """Return the seconds that this process and those below it, Ray's among them, have computed."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def plain_copy(size: int) -> float:
    """Return the seconds that copying so many bytes takes, in pieces of 256 MB that were written to before."""
    source, target = (np.ones(1 << 28, np.uint8) for _ in range(2))
    begun = time.perf_counter()
    for start in range(0, size, 1 << 28):
        count = min(1 << 28, size - start)
        target[:count] = source[:count]
    return time.perf_counter() - begun


def one(found: Connection, samples: int, tokens: int, ranks: int, by_workers: bool) -> None:
    """Measure one size, in a process of its own."""
    found.send(asyncio.run(measure(samples, tokens, ranks, by_workers)))


def main() -> None:
    """Measure each size in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[256, 1024], help="sizes of a step")
    parser.add_argument("--tokens", type=int, default=4096, help="of a sample")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--driver", action="store_true", help="through the driver too")
    args = parser.parse_args()
    # Forked: Ray gives its workers the classes of `__main__`, and a process that is spawned has none there.
    context = multiprocessing.get_context("fork")
    print(
        f"{'':8} {'samples':>8} {'driver MB / 1,000':>18} {'driver GB':>10} {'s/step':>8} {'CPU s':>7} {'batch':>7} "
        f"{'ranks':>7} {'moved GB':>9} {'× copy':>7} {'× Ray':>6} {'step':>7}"
    )
    for mode in ("driver", "workers") if args.driver else ("workers",):
        for samples in args.samples:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=one, args=(theirs, samples, args.tokens, args.ranks, mode == "workers"))
            process.start()
            theirs.close()
            try:
                row = ours.recv()
            except EOFError:  # what went wrong is above
                sys.exit(1)
            process.join()
            print(
                f"{mode:8} {samples:8,} {row['driver_mb']:18.2f} {row['driver_gb']:10.2f} {row['step']:8.2f} "
                f"{row['cpu']:7.2f} {row['batch']:7.2f} {row['ranks']:7.2f} {row['moved_gb']:9.2f} "
                f"{row['ranks'] / row['copy']:7.1f} {row['ranks'] / row['ray']:6.2f} {row['step'] / row['copy']:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
