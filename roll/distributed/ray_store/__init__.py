"""An experience store in a Ray cluster: an actor that programs find by its name, and what they call it with."""

from roll.distributed.ray_store.store import RayStore

__all__ = ["RayStore"]
