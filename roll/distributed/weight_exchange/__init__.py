"""New weights from a program that learns to programs that explore, in a Ray cluster that all of them join."""

from roll.distributed.weight_exchange.calls import WeightExchange
from roll.distributed.weight_exchange.host import Standing, Stored, WeightCall

__all__ = ["WeightCall", "Standing", "Stored", "WeightExchange"]
