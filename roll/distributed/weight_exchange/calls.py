"""Calls to the actor through which weights are exchanged: it is found by its name, or made where there is none."""

from __future__ import annotations

import time
from typing import Any, Final

import ray
from ray.exceptions import RayError, RayTaskError

from roll.distributed.weight_exchange.host import WeightHost
from roll.distributed.weight_sync import WeightSyncError

PATIENCE: Final = 120.0
"""Seconds that the actor may be gone, or silent."""


class WeightExchange:
    """Where programs of a Ray cluster find each other's weights. Pickle it to any process of the cluster.

    The actor is made by whoever comes first, and stays until the cluster ends.

    Args:
        name: Of the experience store that the programs share.
        namespace: Where the name is known.
        patience: Seconds that the actor may be gone, or silent.
    """

    def __init__(self, name: str, namespace: str, patience: float = PATIENCE) -> None:
        self.name = name
        self._namespace = namespace
        self._patience = patience
        self._host: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without what this process has found."""
        return WeightExchange, (self.name, self._namespace, self._patience)

    def call(self, method: str, *args: Any) -> Any:
        """Return what a method of :class:`~roll.distributed.weight_exchange.host.WeightHost` returns.

        Raises:
            WeightSyncError: The actor does not answer.
        """
        until = time.monotonic() + self._patience
        while True:
            if not ray.is_initialized():  # Ray would start a cluster of its own
                raise WeightSyncError("weight sync: this process has left the Ray cluster")
            try:
                return ray.get(getattr(self._found(), method).remote(*args), timeout=self._patience)
            except RayTaskError:
                raise
            except RayError as error:
                self._host = None
                if time.monotonic() > until:
                    raise WeightSyncError(
                        f"weight sync: the actor that has the weights of the experience store {self.name!r} does not "
                        f"answer within {self._patience:g} s ({' '.join(str(error).split())[:300]}). Look at what it "
                        "does (ray list actors, ray status)"
                    ) from error
                time.sleep(0.2)

    def _found(self) -> Any:
        if self._host is None:
            # Made again where it dies: it has lost the weights then, and the trainer offers those of now anew.
            host = ray.remote(WeightHost).options(
                name=f"{self.name} weights",
                namespace=self._namespace,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=-1,
            )
            self._host = host.remote()
        return self._host
