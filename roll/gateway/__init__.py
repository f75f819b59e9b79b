"""An endpoint for agent programs: the APIs that they speak, in front of a recorder that keeps the exact tokens."""

from roll.gateway.app import Gateway, GatewayLimits
from roll.gateway.client import AgentClient
from roll.gateway.endpoint import AgentEndpoint, OnLoop
from roll.gateway.errors import ApiError
from roll.gateway.recorder import Recorder
from roll.gateway.records import Answer, Answers, Ask, Asked, ChatMessage, FunctionCall
from roll.gateway.served import Name, ServedPolicy
from roll.gateway.server import GatewayServer
from roll.gateway.turns import recorded_metrics, turns_of

__all__ = [
    "AgentClient",
    "AgentEndpoint",
    "Answer",
    "Answers",
    "ApiError",
    "Ask",
    "Asked",
    "ChatMessage",
    "FunctionCall",
    "Gateway",
    "GatewayLimits",
    "GatewayServer",
    "Name",
    "OnLoop",
    "Recorder",
    "ServedPolicy",
    "recorded_metrics",
    "turns_of",
]
