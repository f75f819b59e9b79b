"""Roles as workers: in this process, or as Ray actors on one machine or many."""

from roll.distributed.cluster import Cluster, LocalCluster, open_cluster
from roll.distributed.context import WorkerContext, worker_context
from roll.distributed.errors import WorkerCallError, WorkerDiedError, WorkerError, WorkerTimeoutError
from roll.distributed.local import LocalGroup
from roll.distributed.placement import ClusterPlan, RolePlan, WorkerPlace, plan_placement
from roll.distributed.worker_group import WorkerCalls, WorkerGroup, WorkerSpec

__all__ = [
    "Cluster",
    "ClusterPlan",
    "LocalCluster",
    "LocalGroup",
    "RolePlan",
    "WorkerCallError",
    "WorkerCalls",
    "WorkerContext",
    "WorkerDiedError",
    "WorkerError",
    "WorkerGroup",
    "WorkerPlace",
    "WorkerSpec",
    "WorkerTimeoutError",
    "open_cluster",
    "plan_placement",
    "worker_context",
]
