"""Memory that processes lend each other: what a reader has is never written to, and what comes back is lent again."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection

import numpy as np
import pytest

from roll.distributed.lent_memory import Lender, Loan, LoanError, Neighbour

HERE = Neighbour.here()
pytestmark = pytest.mark.skipif(HERE is None, reason="this system has no memory that can be lent")
LARGE = 1 << 18


@pytest.fixture
def lender() -> Lender:
    return Lender()


def lend(lender: Lender, *arrays: np.ndarray, reader: Neighbour | None = HERE) -> Loan:
    assert reader is not None
    loan = lender.lend([memoryview(each) for each in arrays], reader)
    assert loan is not None
    return loan


def filled(value: int, size: int = LARGE) -> np.ndarray:
    return np.full(size, value, np.uint8)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_lent_arrives_as_it_is_and_cannot_be_written_to(lender: Lender) -> None:
    arrays = [np.arange(100_000), np.zeros(0, np.float32), np.random.default_rng(0).normal(size=(7, 11)), filled(3, 5)]
    found = lend(lender, *arrays).open()
    for array, view in zip(arrays, found, strict=True):
        read = np.frombuffer(view, array.dtype)
        assert read.tobytes() == array.tobytes() and not read.flags.writeable
        assert read.__array_interface__["data"][0] % 64 == 0 or not len(read)


def test_little_goes_another_way(lender: Lender) -> None:
    assert HERE is not None and lender.lend([memoryview(b"little")], HERE) is None


def test_where_there_is_no_memory_things_go_another_way(lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert HERE is not None and lender.lend([memoryview(filled(1))], HERE) is None


def test_memory_that_comes_back_is_lent_again_and_no_other(lender: Lender) -> None:
    first = lend(lender, filled(1))
    kept = np.frombuffer(first.open()[0], np.uint8)[10:20]  # a view of a view keeps all of it
    second = lend(lender, filled(2))
    assert second.inode != first.inode
    second.open()
    assert lend(lender, filled(3)).inode == second.inode
    assert kept.tolist() == [1] * 10
    del kept
    assert lend(lender, filled(4)).inode == first.inode


def test_what_nobody_opened_can_be_taken_back(lender: Lender) -> None:
    loan = lend(lender, filled(1))
    lender.recall(loan)
    with pytest.raises(LoanError, match=f"process {os.getpid()} lent"):
        loan.open()
    # The number of the descriptor is another file's by now.
    lend(lender, filled(2))
    with pytest.raises(LoanError, match="taken back before it was read"):
        loan.open()


def test_what_is_taken_back_from_who_has_it_open_stays_theirs(lender: Lender) -> None:
    loan = lend(lender, filled(1))
    (held,) = loan.open()
    lender.recall(loan)
    for value in range(2, 6):
        lend(lender, filled(value)).open()
    assert bytes(held[:3]) == b"\x01\x01\x01"


def test_a_call_that_fails_late_takes_back_no_other_loan(lender: Lender) -> None:
    first = lend(lender, filled(1))
    first.open()  # read, and given back
    second = lend(lender, filled(2))
    assert second.inode == first.inode
    lender.recall(first)
    assert second.open()[0][0] == 2


def test_an_answer_that_nobody_fetches_is_given_up(lender: Lender) -> None:
    assert HERE is not None
    for _ in range(5):
        lender.lend([memoryview(filled(1))], HERE, within=-1.0)
    before = descriptors()
    for _ in range(20):
        lender.lend([memoryview(filled(1))], HERE, within=-1.0)
    assert descriptors() <= before


@pytest.mark.parametrize("seed", range(5))
def test_no_more_is_kept_than_was_lent_at_one_time(lender: Lender, seed: int) -> None:
    drawn, held = random.Random(seed), list[tuple[int, memoryview]]()
    before = most = descriptors()
    for number in range(300):
        if held and drawn.random() < 0.5:
            held.pop(drawn.randrange(len(held)))
        if len(held) < 6:
            value, size = number % 251, drawn.randrange(LARGE, 8 * LARGE)
            held.append((value, lend(lender, filled(value, size)).open()[0]))
        for value, view in held:
            assert view[0] == view[-1] == view[len(view) // 2] == value
        most = max(most, descriptors())
    # Six at a time: two descriptors each here, one of the same process as their reader, and mappings of what was
    # dropped until the next is opened.
    assert most - before <= 4 * 7


def read(loans: Connection) -> None:
    """Open each loan and say what is in it, until there are no more."""
    held = []
    for loan in iter(loans.recv, None):
        held.append(loan.open())
        loans.send([bytes(view[:2]) for view in held[-1]])
    loans.send(None)


@pytest.mark.processes
def test_another_process_reads_it_and_may_die_with_it(lender: Lender) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(target=read, args=(theirs,))
    reader.start()
    assert HERE is not None and reader.pid is not None
    other = Neighbour(HERE.place, reader.pid)
    assert other.is_near
    inodes = set()
    for value in range(3):
        loan = lend(lender, filled(value), filled(value + 1), reader=other)
        ours.send(loan)
        assert ours.recv() == [bytes([value] * 2), bytes([value + 1] * 2)]
        inodes.add(loan.inode)
    assert len(inodes) == 3, "it still has them"
    os.kill(reader.pid, signal.SIGKILL)
    reader.join()
    assert not other.is_near
    before = descriptors()
    for value in range(3):
        lend(lender, filled(value)).open()
    assert descriptors() <= before, "what the dead process had was let go"


def test_a_fork_of_the_reader_gives_nothing_back(lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    loan = lend(lender, filled(1))
    held = loan.open()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        held.clear()
    assert lend(lender, filled(2)).inode != loan.inode


def test_a_process_of_another_machine_or_user_is_not_near() -> None:
    assert HERE is not None and HERE.is_near
    assert not Neighbour(f"{HERE.place}0", HERE.pid).is_near
    assert not Neighbour(HERE.place, 1 << 22).is_near
