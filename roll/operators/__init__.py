"""Operators: functions that filter, change and order tasks and groups of trajectories, and say what they dropped."""

from roll.operators.pipeline import Change, Operator, operator_of, run_operators
from roll.operators.registry import OPERATORS, TaskRow, register_operator

__all__ = ["OPERATORS", "Change", "Operator", "TaskRow", "operator_of", "register_operator", "run_operators"]
