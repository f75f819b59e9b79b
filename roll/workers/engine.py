"""One engine that samples from the policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from roll.config import SamplingConfig
from roll.distributed import worker_context
from roll.distributed.weight_sync import Place, WeightOffer
from roll.generation import Activity, Completion, GenerationRequest
from roll.strategies.base import GenerationStrategy, TellsFingerprints, WeightUpdate
from roll.strategies.fingerprints import Fingerprints
from roll.workers.engine_weights import weight_inbox
from roll.workers.factory import generation_strategy
from roll.workers.loading import number_format
from roll.workers.memory import peak_memory
from roll.workers.setup import Registered, set_up


class EngineWorker:
    """Samples completions, and takes new weights between them.

    Args:
        config: The run.
        registered: What user code registered in the driver.
        model: A model of this process to sample from, instead of a copy.
        activity: Tells the engine when everything is quiet; where a role has several, each engine has its own.
        role: Whose engine it is.

    Raises:
        ConfigError: If the model cannot be loaded.
    """

    def __init__(
        self,
        config: SamplingConfig,
        registered: Registered,
        model: PreTrainedModel | None = None,
        activity: Activity | Sequence[Activity] | None = None,
        role: str = "actor_infer",
    ) -> None:
        set_up(config, registered)
        own = activity[worker_context().rank] if isinstance(activity, Sequence) else activity
        self._engine: GenerationStrategy = generation_strategy(config, model, own, role)
        self._inbox = weight_inbox(self._engine)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``."""
        return await self._engine.generate(request)

    async def abort(self, request_id: str) -> None:
        """End a running request; it is answered with what it has."""
        await self._engine.abort(request_id)

    async def release(self, session: str) -> None:
        """Forget the prefix kept for ``session``."""
        await self._engine.release(session)

    async def alive(self) -> bool:
        """Answer."""
        return True

    async def pause(self) -> None:
        """Freeze running requests; returns when no forward pass runs."""
        await self._engine.pause()

    async def resume(self) -> None:
        """Continue."""
        await self._engine.resume()

    async def sleep(self) -> None:
        """Give the device to others."""
        await self._engine.sleep()

    async def wake(self, tag: str) -> None:
        """Take back the ``weights``, or the ``kv_cache`` too and continue."""
        await self._engine.wake([tag])

    async def peak_memory(self) -> float:
        """Return the most bytes this worker had since the last call."""
        return peak_memory()

    async def places(self) -> list[Place]:
        """Return where the weights of this engine are: in this process, or in some of its own."""
        return await self._inbox.places()

    async def open_weights(self, link: str, offer: WeightOffer, names: list[str]) -> None:
        """Take the other end of a link over which the trainer sends weights; ``names`` are those of the places."""
        await self._inbox.open(link, offer, names)

    async def receive_weights(self, link: str) -> int:
        """Receive weights and load them; returns their version."""
        return await self._inbox.receive(link)

    async def load(self, folder: Path, version: int) -> None:
        """Sample from the weights of a folder in Hugging Face format from now on."""
        files = sorted(folder.glob("*.safetensors"))
        tensors = [pair for file in files for pair in load_file(file).items()]
        await self._engine.update_weights(WeightUpdate(version, tensors))

    async def fingerprints(self) -> Fingerprints | None:
        """Return fingerprints of the weights that the engine computes with; ``None`` from one that cannot tell."""
        return await self._engine.fingerprints() if isinstance(self._engine, TellsFingerprints) else None

    async def close_weights(self, link: str) -> None:
        """Close a link; one that is not there is ignored."""
        await self._inbox.close(link)

    async def close(self) -> None:
        """Abort all requests and free everything."""
        await self._inbox.close_all()
        await self._engine.close()


def wire_dtype(config: SamplingConfig) -> torch.dtype | None:
    """Return the type in which weights travel: bf16 where the engine computes in it, else as they are.

    One that computes as the trainer does takes them as they are, whatever its own ``model_args`` say.
    """
    if config.actor_infer.strategy_args.about.computes_as_trainer:
        return None
    return torch.bfloat16 if number_format(config, "actor_infer") == "bf16" else None
