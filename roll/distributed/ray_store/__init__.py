"""An experience store in a Ray cluster: an actor that programs find by its name, and what they call it with."""

from roll.distributed.ray_store.store import RayStore, open_address

__all__ = ["RayStore", "open_address"]
