"""Emptying: workers that end together once nothing is left. The queue is a stand-in."""

from __future__ import annotations

from typing import cast

import pytest

from commandbus.database.store import Store
from commandbus.errors import DomainPausedError
from commandbus.testing import fake_bus, store_of
from commandbus.worker.emptying import Emptying, UntilEmpty


class Queue:
    def __init__(self) -> None:
        self.left: str | None = None

    async def what_is_left(self, domain: str, *, include_delayed: bool) -> str | None:
        return self.left


class Bench:
    def __init__(self, *domains: str) -> None:
        self.group = Emptying()
        self.queue = Queue()
        self.stopped: list[str] = []
        self.woken: list[str] = []
        self.quiet = True
        self.members = [self._member(domain) for domain in domains]

    def _member(self, domain: str) -> UntilEmpty:
        member = UntilEmpty(domain, False, self.group, stop=lambda: self.stopped.append(domain))
        member.wake = lambda: self.woken.append(domain)
        member.is_quiet = lambda: self.quiet
        self.group.join(member)
        return member

    async def look(self, member: UntilEmpty) -> None:
        member.look_begins()
        await member.found_nothing(cast("Store", self.queue))


async def test_one_look_in_vain_ends_a_single_worker() -> None:
    bench = Bench("a")
    await bench.look(bench.members[0])
    assert bench.stopped == ["a"]


async def test_a_look_while_something_runs_does_not_count() -> None:
    bench = Bench("a")
    bench.quiet = False
    await bench.look(bench.members[0])
    assert bench.stopped == []


@pytest.mark.parametrize("left", ["due", "delayed"])
async def test_a_look_in_vain_is_no_end_while_something_is_left(left: str) -> None:
    bench = Bench("a")
    bench.queue.left = left
    await bench.look(bench.members[0])
    assert bench.stopped == []


async def test_all_end_once_each_has_looked_in_vain() -> None:
    bench = Bench("a", "b")
    await bench.look(bench.members[0])
    assert bench.stopped == []
    await bench.look(bench.members[1])
    assert bench.stopped == ["a", "b"]


async def test_a_commit_makes_the_looks_before_it_too_old() -> None:
    bench = Bench("a", "b")
    a, b = bench.members
    await bench.look(a)
    b.committed(is_idle=True)
    assert bench.woken == ["b"]
    await bench.look(b)
    assert (bench.stopped, bench.woken) == ([], ["b", "a"])
    await bench.look(a)
    assert bench.stopped == ["a", "b"]


async def test_a_look_that_began_before_a_commit_is_too_old() -> None:
    bench = Bench("a")
    [a] = bench.members
    a.look_begins()
    a.committed(is_idle=False)
    await a.found_nothing(cast("Store", bench.queue))
    assert (bench.stopped, bench.woken) == ([], ["a"])


async def test_a_command_undoes_a_look_in_vain() -> None:
    bench = Bench("a", "b")
    a, b = bench.members
    await bench.look(a)
    a.found_work()
    await bench.look(b)
    assert bench.stopped == []


async def test_who_has_ended_is_not_waited_for() -> None:
    bench = Bench("a", "b")
    a, b = bench.members
    await bench.look(a)
    bench.group.leave(b)
    bench.group.leave(b)
    assert bench.stopped == ["a"]


async def test_a_paused_domain_ends_all_of_them() -> None:
    bench = Bench("a", "b")
    bench.queue.left = "paused"
    await bench.look(bench.members[0])
    assert bench.stopped == ["a", "b"]
    assert [member.error is None for member in bench.members] == [False, True]


async def test_a_worker_of_a_paused_domain_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = fake_bus()

    async def paused(domain: str, *, include_delayed: bool) -> str:
        return "paused"

    monkeypatch.setattr(store_of(bus), "what_is_left", paused)
    with pytest.raises(DomainPausedError, match="'shop' is paused") as raised:
        await bus.run_worker("shop", until_empty=True)
    assert raised.value.domain == "shop"
