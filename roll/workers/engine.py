"""One engine that samples from the policy."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from roll.config import PipelineConfig
from roll.distributed.weight_sync import Place, WeightOffer, WeightReceiver
from roll.strategies.activity import Activity
from roll.strategies.base import GenerationStrategy
from roll.strategies.hf_infer import HfInferStrategy
from roll.workers.factory import generation_strategy
from roll.workers.loading import device
from roll.workers.mailbox import MailboxWorker
from roll.workers.memory import peak_memory
from roll.workers.setup import Registered, set_up


class EngineWorker(MailboxWorker):
    """Samples completions (:class:`roll.workers.mailbox.MailboxWorker`), and takes new weights between them.

    Args:
        config: The run.
        registered: What user code registered in the driver.
        model: A model of this process to sample from, instead of a copy.
        activity: Tells the engine when everything is quiet.

    Raises:
        ConfigError: If the model cannot be loaded.
    """

    _engine: GenerationStrategy

    def __init__(
        self,
        config: PipelineConfig,
        registered: Registered,
        model: PreTrainedModel | None = None,
        activity: Activity | None = None,
    ) -> None:
        set_up(config, registered)
        super().__init__(generation_strategy(config, model, activity))
        self._receivers: dict[str, WeightReceiver] = {}

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

    async def place(self) -> Place:
        """Return where the weights of this engine are."""
        return Place.here(device())

    async def open_weights(self, link: str, offer: WeightOffer, name: str) -> None:
        """Take the other end of a link over which the trainer sends weights."""
        await self.close_weights(link)
        # Engines with processes of their own get the tensors from here, through main memory.
        where = device() if isinstance(self._engine, HfInferStrategy) else torch.device("cpu")
        self._receivers[link] = WeightReceiver(offer, name, device=where)

    async def receive_weights(self, link: str) -> int:
        """Receive weights and load them; returns their version."""
        return await self._receivers[link].update(self._engine)

    async def close_weights(self, link: str) -> None:
        """Close a link; one that is not there is ignored."""
        receiver = self._receivers.pop(link, None)
        if receiver is not None:
            receiver.close()

    async def close(self) -> None:
        """Abort all requests and free everything."""
        for link in list(self._receivers):
            await self.close_weights(link)
        await super().close()


def wire_dtype(config: PipelineConfig) -> torch.dtype | None:
    """Return the type in which weights travel: bf16 where the engine computes in it, else as they are."""
    return torch.bfloat16 if config.actor_infer.model_args.dtype == "bf16" else None
