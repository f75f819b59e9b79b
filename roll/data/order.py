"""An endless, seeded order of the rows of several domains: a position is all that a run must remember."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from roll.config.errors import choose_from
from roll.data.errors import DataError
from roll.data.shares import Shares

_TOLERANCE = Fraction(1, 10**6)
_STATE_FORMAT = 1


class RowOrder:
    """Rows of several domains, each with its exact share, each shuffled anew in every epoch.

    ``at(position)`` depends on the rows, the seed and the position alone.

    Attributes:
        shares: Share of each domain that has one above 0.
    """

    def __init__(
        self,
        domains: Mapping[str, np.ndarray],
        digests: Mapping[str, str],
        *,
        seed: int,
        probabilities: Mapping[str, float] | None = None,
        shuffle: bool = True,
    ) -> None:
        """Fix the order.

        Args:
            domains: The numbers of the rows of each domain.
            digests: A checksum of each domain's rows and their order.
            seed: Seed of the order.
            probabilities: Share of each domain, together 1; ``None``: in proportion to their rows.
            shuffle: False keeps the order of the files.

        Raises:
            DataError: If the shares do not fit the data.
        """
        self._domains, self._digests = domains, digests
        self.shares = exact_shares({name: len(rows) for name, rows in domains.items()}, probabilities)
        self._seed = seed
        self._shuffle = shuffle
        self._names = list(self.shares)
        self._sequence = Shares(list(self.shares.values()))
        self._orders: dict[str, tuple[int, np.ndarray]] = {}

    def at(self, position: int) -> int:
        """Return the number of the row at ``position`` (0, 1, 2, …), epochs included.

        Raises:
            IndexError: If ``position`` is negative.
        """
        if position < 0:
            raise IndexError(f"position {position}: rows are counted from 0")
        number, turn = self._sequence.at(position)
        domain = self._names[number]
        rows = self._domains[domain]
        epoch, offset = divmod(turn, len(rows))
        return int(rows[self._order(domain, epoch, len(rows))[offset]])

    def state_dict(self, position: int) -> dict[str, Any]:
        """Return a JSON-able record of a run that consumed the rows before ``position``."""
        return {"format": _STATE_FORMAT, "position": position, "data": self._fingerprint()}

    def check_state(self, state: Mapping[str, Any]) -> int:
        """Return the position of a record made by :meth:`state_dict`.

        Raises:
            DataError: If it was made with data in another order; the message names what differs.
        """
        if state.get("format") != _STATE_FORMAT:
            what = f"the checkpoint's data position has the format {state.get('format')!r}, not {_STATE_FORMAT}."
            raise DataError(what, "start a new run, or use the version of roll that wrote the checkpoint.")
        differences = list(_differences(state["data"], self._fingerprint()))
        if differences:
            raise DataError(
                "the checkpoint was made with other data, so its position means nothing here:\n    "
                + "\n    ".join(differences),
                "resume with the files and data settings of the first run, or start a new run from the checkpoint's "
                "`hf` folder (`pretrain`).",
            )
        return int(state["position"])

    def _order(self, domain: str, epoch: int, rows: int) -> np.ndarray:
        """Return the permutation of the domain's rows in ``epoch``."""
        kept = self._orders.get(domain)
        if kept is not None and (kept[0] == epoch or not self._shuffle):
            return kept[1]
        order = np.arange(rows)
        if self._shuffle:
            sequence = np.random.SeedSequence([self._seed, zlib.crc32(domain.encode()), epoch])
            # NumPy promises to never change the raw bits of a bit generator; of `permutation` it promises nothing.
            order = np.argsort(np.random.PCG64(sequence).random_raw(rows), kind="stable")
        self._orders[domain] = (epoch, order)
        return order

    def _fingerprint(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "domains": {
                name: {
                    "share": str(share),
                    "rows": len(self._domains[name]),
                    "digest": self._digests[name],
                }
                for name, share in self.shares.items()
            },
        }


def exact_shares(rows: Mapping[str, int], probabilities: Mapping[str, float] | None) -> dict[str, Fraction]:
    """Return the share of each domain that is drawn from, by name, as fractions that sum to exactly 1.

    Args:
        rows: Number of rows of each domain.
        probabilities: The configured shares; ``None``: in proportion to the rows.

    Raises:
        DataError: If shares do not sum to 1 (within a millionth), or a domain is unknown, missing or without rows.
    """
    if probabilities is None:
        return {name: Fraction(rows[name], sum(rows.values())) for name in sorted(rows) if rows[name]}
    key = "domain_interleave_probs"
    for name, probability in probabilities.items():
        if name not in rows:
            raise DataError(f"`{key}` names {name!r}, which is no domain of `rewards`.", choose_from(name, rows))
        if probability and not rows[name]:
            fix = f"set `{key}.{name}: 0`, add a file with its rows, or look at `tag_included` of its reward."
            raise DataError(f"`{key}` draws {probability:g} from {name!r}, which has no rows.", fix)
    missing = [name for name, count in rows.items() if count and name not in probabilities]
    if missing:
        fix = "give every domain its share; 0 leaves one out."
        raise DataError(f"`{key}` says nothing of {', '.join(map(repr, missing))}.", fix)
    # The decimal number that was written, not the binary one next to it.
    shares = {name: Fraction(repr(float(value))) for name, value in probabilities.items()}
    total = sum(shares.values(), start=Fraction(0))
    if abs(total - 1) > _TOLERANCE:
        raise DataError(f"the shares of `{key}` sum to {float(total):g}, not to 1.", "correct them to sum to 1.")
    # Sorted, so that the order of prompts does not depend on the order of keys in a YAML file.
    return {name: shares[name] / total for name in sorted(shares) if shares[name]}


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two fingerprints, as sentences."""
    found = [f"{key}: {then[key]} then, {now[key]} now" for key in ("seed", "shuffle") if then.get(key) != now.get(key)]
    before, after = then["domains"], now["domains"]
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found.append(f"domain {name}: {'only in this run' if old is None else 'missing in this run'}")
            continue
        if old["share"] != new["share"]:
            found.append(f"domain {name}: share {old['share']} then, {new['share']} now")
        if old["rows"] != new["rows"]:
            found.append(f"domain {name}: {old['rows']} rows then, {new['rows']} now")
        elif old["digest"] != new["digest"]:
            found.append(f"domain {name}: as many rows, with other contents or in another order")
    return found
