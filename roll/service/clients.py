"""What a server of the protocol holds: sessions, the models of clients, and weights that they saved."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from transformers import PreTrainedModel

from roll.service.records import Adapters, RefusedError
from roll.service.sampling import LiveEngines, Sampler
from roll.service.training import ClientModel, sharing, stored_kind

T = TypeVar("T")
_SCHEME: Final = "tinker://"
_NAME: Final = re.compile(r"[\w.-]{1,100}")
KINDS: Final = ("weights", "sampler_weights")
ENGINES: Final = 4
"""Engines that are there at once: clients save weights at every step, and sample from the newest, and maybe a rival."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """The model that all clients adapt.

    Attributes:
        name: As clients call it.
        folder: Where its tokenizer and configuration are.
        model: Its weights, frozen.
        decode: Tokens to text.
        stop_token_ids: What ends an answer.
        longest: Most tokens of a sequence.
    """

    name: str
    folder: str
    model: PreTrainedModel
    decode: Callable[[list[int]], str]
    stop_token_ids: tuple[int, ...]
    longest: int


@dataclass(slots=True)
class Client:
    """A model in training; one thing is done with it at a time, in the order in which they were asked.

    Attributes:
        model: The model.
        turn: Held by what is done with it.
        began: Seconds since the epoch when it was made.
        saved: Checkpoints without a name of their own so far.
        is_used: Whether anything was asked of it.
    """

    model: ClientModel
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = field(default_factory=time.time)
    saved: int = 0
    is_used: bool = False


class Clients:
    """Models, samplers and stored weights, by the names that the protocol gives them.

    Args:
        base: What is adapted.
        folder: Where weights are stored.
    """

    def __init__(self, base: Base, folder: Path) -> None:
        self.base = base
        self.computing = ThreadPoolExecutor(1, thread_name_prefix="roll-service")
        self._folder = folder
        self._models: dict[str, Client] = {}
        self.engines = LiveEngines(ENGINES)
        self._base_sampler = self._sampler(sharing(base.model))
        self._samplers: dict[str, tuple[Sampler, str | None]] = {}
        self._stored: dict[str, Sampler] = {}

    async def compute(self, function: Callable[[], T]) -> T:
        """Run a computation in the thread for them: one at a time has the processors."""
        return await asyncio.get_running_loop().run_in_executor(self.computing, function)

    def client(self, model_id: str) -> Client:
        """Return a model in training.

        Raises:
            RefusedError: There is none.
        """
        if model_id not in self._models:
            raise RefusedError(f"there is no model {model_id!r} in training", 404)
        return self._models[model_id]

    def models(self) -> Mapping[str, Client]:
        """Return all models in training."""
        return dict(self._models)

    def unload(self, model_id: str) -> None:
        """Forget a model; what was stored of it stays."""
        self.client(model_id)
        del self._models[model_id]

    async def finish(self, session_id: str) -> None:
        """Forget the models and samplers of a session; what was stored of them stays."""
        begins = f"{session_id}:"
        for model_id in [each for each in self._models if each.startswith(begins)]:
            del self._models[model_id]
        for sampler_id in [each for each in self._samplers if each.startswith(begins)]:
            sampler, _ = self._samplers.pop(sampler_id)
            if all(sampler is not other for other, _ in self._samplers.values()):
                await self.engines.end(sampler)

    async def create(self, model_id: str, wanted: Adapters) -> None:
        """Begin to train adapters."""
        self._models[model_id] = Client(await self.compute(lambda: ClientModel(self.base.model, wanted)))

    async def save(self, model_id: str, name: str | None, kind: str) -> str:
        """Store the weights of a model; return their path. The client has its turn already.

        Raises:
            RefusedError: The name is none that a file may have.
        """
        client = self.client(model_id)
        if name is None:
            client.saved += 1
            name = f"{client.saved:06d}"
        path = f"{_SCHEME}{model_id}/{kind}/{name}"
        folder = self._place(path)
        await self.compute(lambda: client.model.save(folder, optimizer=kind == "weights"))
        self._stored.pop(path, None)
        return path

    async def load(self, model_id: str, path: str, *, optimizer: bool) -> None:
        """Give a model stored weights before anything else is done with it; one that is not there yet is made.

        Raises:
            RefusedError: It was used already.
        """
        folder = self._place(path)
        kind = stored_kind(folder)
        if model_id in self._models and self._models[model_id].is_used:
            message = "LoadWeights is not permitted once a model was used: make a training client from the weights"
            raise RefusedError(message)
        if model_id not in self._models:
            await self.create(model_id, kind)
        client = self.client(model_id)
        await self.compute(lambda: client.model.load(folder, optimizer=optimizer))

    def kind(self, path: str) -> Adapters:
        """Return which adapters are stored at a path."""
        return stored_kind(self._place(path))

    def archive(self, path: str) -> Path:
        """Return the folder that is stored at a path, for one who fetches it.

        Raises:
            RefusedError: There is none.
        """
        folder = self._place(path)
        stored_kind(folder)
        return folder

    def delete(self, path: str) -> None:
        """Forget what is stored at a path."""
        shutil.rmtree(self.archive(path))
        self._stored.pop(path, None)

    def stored(self, model_id: str) -> list[tuple[str, Path]]:
        """Return the paths of what is stored of a model, and their folders, in the order of their names."""
        found = []
        for kind in KINDS:
            folder = self._place(f"{_SCHEME}{model_id}/{kind}/any").parent
            for place in sorted(folder.iterdir()) if folder.is_dir() else ():
                found.append((f"{_SCHEME}{model_id}/{kind}/{place.name}", place))
        return found

    async def open_sampler(self, sampler_id: str, path: str | None) -> None:
        """Let a client sample from stored weights, or from the base model."""
        self._samplers[sampler_id] = await self.sampler_at(path), path

    async def sampler_at(self, path: str | None) -> Sampler:
        """Return what samples from stored weights, or from the base model; all who ask share it."""
        if path is None:
            return self._base_sampler
        if path not in self._stored:
            folder, kind = self._place(path), self.kind(path)

            def adapted() -> PreTrainedModel:
                model = ClientModel(self.base.model, kind)
                model.load(folder, optimizer=False)
                return model.snapshot()

            self._stored[path] = self._sampler(await self.compute(adapted))
        return self._stored[path]

    async def open_snapshot(self, model_id: str, sampler_id: str) -> None:
        """Let a client sample from a model as it is now, without storing it. It has its turn already."""
        frozen = await self.compute(self.client(model_id).model.snapshot)
        self._samplers[sampler_id] = self._sampler(frozen), None

    def sampler(self, sampler_id: str) -> tuple[Sampler, str | None]:
        """Return a sampler, and the path of its weights if they are stored.

        Raises:
            RefusedError: There is none.
        """
        if sampler_id not in self._samplers:
            raise RefusedError(f"there is no sampler {sampler_id!r}", 404)
        return self._samplers[sampler_id]

    async def close(self) -> None:
        """End the engines."""
        await self.engines.close()
        self.computing.shutdown()

    def _sampler(self, model: PreTrainedModel) -> Sampler:
        base = self.base
        return Sampler(self.engines, base.folder, model, base.longest, base.decode, self.computing)

    def _place(self, path: str) -> Path:
        """Return the folder of a path.

        Raises:
            RefusedError: It is no path of ours.
        """
        parts = path.removeprefix(_SCHEME).split("/")
        if not path.startswith(_SCHEME) or len(parts) != 3 or parts[1] not in KINDS:
            raise RefusedError(f"{path!r} is not of the form tinker://model/weights/name")
        names = [parts[0].replace(":", "-"), parts[1], parts[2]]
        if not all(_NAME.fullmatch(name) and set(name) != {"."} for name in names):
            raise RefusedError(f"{path!r} has a name with other characters than letters, digits, - _ .")
        return self._folder.joinpath(*names)


def new_name(prefix: str) -> str:
    """Return a name that nobody has yet."""
    return f"{prefix}-{secrets.token_hex(8)}"
