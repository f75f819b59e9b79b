"""New weights from a trainer to engines in other processes, or in the same one."""

from roll.distributed.weight_sync.errors import WeightsGoneError, WeightSyncError, WeightSyncTimeoutError
from roll.distributed.weight_sync.manifest import Manifest, describe
from roll.distributed.weight_sync.offer import WeightOffer
from roll.distributed.weight_sync.receiver import TakesWeights, WeightReceiver, report_missing
from roll.distributed.weight_sync.sender import WeightSender
from roll.distributed.weight_sync.settings import Method, Place, WeightSyncSettings, choose_method

__all__ = [
    "Manifest",
    "Method",
    "Place",
    "TakesWeights",
    "WeightOffer",
    "WeightReceiver",
    "WeightSender",
    "WeightSyncError",
    "WeightSyncSettings",
    "WeightSyncTimeoutError",
    "WeightsGoneError",
    "choose_method",
    "describe",
    "report_missing",
]
