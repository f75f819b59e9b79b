"""What runs inside vLLM's own processes: taking new weights.

vLLM mixes :class:`WorkerExtension` into its worker class; the strategy calls the methods by name. They answer with what
went wrong as text instead of raising, because vLLM turns an exception into a message that hides its cause.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

import torch
from torch import nn

from roll.strategies.base import ReceivesWeights
from roll.strategies.generation.vllm.buckets import Row, open_bucket

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Problem = str | None
"""What went wrong, or ``None``."""


def _answering(
    method: Callable[Concatenate[WorkerExtension, P], Problem],
) -> Callable[Concatenate[WorkerExtension, P], Problem]:
    """Return the exception of a method as text; a failed update is taken back."""

    @wraps(method)
    def answer(self: WorkerExtension, *args: P.args, **kwargs: P.kwargs) -> Problem:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            logger.exception("roll: %s failed", method.__name__)
            self.roll_abandon_update()
            return f"{type(error).__name__}: {error}"

    return answer


class WorkerExtension:
    """Methods that vLLM's worker gets. All names begin with ``roll_``, so that none clashes with the worker's own."""

    roll_loaded: set[str] | None = None
    """The engine's own names of the parameters that an update has reached; ``None`` outside of one."""
    roll_expected: frozenset[str] = frozenset()
    """Names that an update must reach: one of those that share their values."""
    roll_tied: tuple[nn.Module, ...] = ()
    """Layers whose values are those of another layer."""
    roll_receiver: ReceivesWeights | None = None

    model_runner: Any
    model_config: Any
    vllm_config: Any
    rank: int

    @_answering
    def roll_begin_update(self) -> Problem:
        """Make the model ready to be loaded anew, layer by layer."""
        if self.roll_loaded is not None:
            self.roll_abandon_update()
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        model = self.model_runner.get_model()
        self.roll_expected = frozenset(name for name, _ in model.named_parameters())
        self.roll_tied = tuple(_tied_layers(model))
        with self._roll_config():
            initialize_layerwise_reload(model)
        self.roll_loaded = set()
        return None

    @_answering
    def roll_load_bucket(self, path: str, rows: list[Row]) -> Problem:
        """Load the tensors of a bucket in shared memory."""
        self._roll_load(open_bucket(path, rows))
        return None

    @_answering
    def roll_finish_update(self) -> Problem:
        """Check that every parameter has new values, and bring them into the form that the kernels want."""
        model = self.model_runner.get_model()
        missing = sorted(self.roll_expected - (self.roll_loaded or set())) + _incomplete_layers(model)
        if missing:
            self.roll_abandon_update()
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            return f"the update has no values, or not all of them, for {', '.join(missing[:5])}{more}"
        from vllm.model_executor.model_loader.reload import layerwise

        with self._roll_config(), _only_errors_of(layerwise.__name__):
            layerwise.finalize_layerwise_reload(model, self.model_config)
            for layer in self.roll_tied:
                # It was not loaded itself, so it still has what was once made of the old values (packed, on CPUs).
                cast(Any, layer).quant_method.process_weights_after_loading(layer)
        self.roll_loaded = None
        return None

    def roll_abandon_update(self) -> None:
        """Give layers that are not loaded whole their earlier values back, so that another update can begin."""
        from vllm.model_executor.model_loader.reload import layerwise

        for module in self.model_runner.get_model().modules():
            info = layerwise.get_layerwise_info(module)
            if info.can_load():
                if info.kernel_tensors is not None:
                    layerwise._place_kernel_tensors(module, info)
                info.reset()
        self.roll_loaded = None

    @_answering
    def roll_connect(self, pickled: bytes) -> Problem:
        """Make this worker's own end of a weight sync; ``pickled`` is a function of its rank in the engine."""
        self.roll_disconnect()
        self.roll_receiver = pickle.loads(pickled)(self.rank)
        return None

    def roll_disconnect(self) -> None:
        """Close the worker's end of a weight sync, if there is one."""
        if self.roll_receiver is not None:
            self.roll_receiver.close()
            self.roll_receiver = None

    def roll_receive(self) -> tuple[Problem, int]:
        """Load one sync that arrives in this very process; return what went wrong, and the version."""
        version = -1

        def receive() -> Problem:
            nonlocal version
            if self.roll_receiver is None:
                return "this worker has no connection to a trainer; call connect_workers first"
            with self.roll_receiver.receive() as update:
                version = update.version
                problem = self.roll_begin_update()
                if problem is None:
                    self._roll_load(update.named_tensors)
                    problem = self.roll_finish_update()
                if problem is not None:
                    # Leaving the block well would tell the trainer that all went well.
                    raise RuntimeError(problem)
            return None

        try:
            return receive(), version
        except Exception as error:
            logger.exception("roll: receiving weights failed")
            self.roll_abandon_update()
            return f"{type(error).__name__}: {error}", version

    def roll_call(self, pickled: bytes) -> bytes:
        """Return the pickled result of a pickled function of this worker's rank in the engine."""
        return pickle.dumps(pickle.loads(pickled)(self.rank))

    def roll_fingerprints(self) -> bytes:
        """Return this worker's parts of the fingerprints of all weights, pickled."""
        from roll.strategies.generation.vllm.fingerprints import parts_of

        return pickle.dumps(list(parts_of(self.model_runner.get_model())))

    def _roll_load(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self.roll_loaded is None:
            raise RuntimeError("weights came without the beginning of an update")
        with self._roll_config():
            loaded = self.model_runner.get_model().load_weights(named_tensors)
        self.roll_loaded |= loaded or set()

    def _roll_config(self) -> AbstractContextManager[None]:
        from vllm.config import set_current_vllm_config

        return set_current_vllm_config(self.vllm_config)


@contextmanager
def _only_errors_of(name: str) -> Iterator[None]:
    """Silence warnings of layers that have nothing to load; what is missing has been checked by then."""
    theirs = logging.getLogger(name)
    level = theirs.level
    theirs.setLevel(logging.ERROR)
    try:
        yield
    finally:
        theirs.setLevel(level)


def _tied_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield layers with a parameter that another layer, yielded before them by ``modules()``, has too."""
    seen: set[int] = set()
    for module in model.modules():
        own = {id(parameter) for parameter in module.parameters(recurse=False)}
        if own & seen and hasattr(module, "quant_method"):
            yield module
        seen |= own


def _incomplete_layers(model: nn.Module) -> list[str]:
    """Return names of linear layers that lack a part, such as the keys' third of a fused projection."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    incomplete = []
    for name, module in model.named_modules():
        info = get_layerwise_info(module)
        # Other layers, such as embeddings, may have padding that nothing is ever loaded into.
        if isinstance(module, LinearBase) and info.can_load() and 0 < info.load_numel < (info.load_numel_total or 0):
            incomplete.append(f"{name} ({info.load_numel} of {info.load_numel_total} values)")
    return incomplete
