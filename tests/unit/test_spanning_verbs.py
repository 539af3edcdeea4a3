"""What becomes of each verb of a bus over several shards: none was forgotten, none is invented."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from commandbus.errors import InvalidOperationError
from commandbus.shards import ShardMap, SpanningBus
from commandbus.shards.call import find
from commandbus.shards.verbs import BLOCKS, CLOSED, LOCAL, OWN, PARTS, RULES, SPECIAL, STREAMS, TOLD

DECIDED = {*BLOCKS, *LOCAL, *OWN, *PARTS, *RULES, *SPECIAL, *STREAMS, *TOLD}


@pytest.fixture
async def bus() -> AsyncIterator[SpanningBus]:
    shards = ShardMap({"one": "host=one", "two": "host=two"}, {}, "one")
    async with SpanningBus.over(shards) as bus:
        yield bus


def verbs(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All public names of a bus and of its parts."""
    for name in sorted({*dir(type(part)), *vars(part)}):
        path = prefix + name
        if name.startswith("_"):
            continue
        if path in PARTS:
            yield from verbs(getattr(part, name), f"{path}.")
        else:
            yield path, part


async def test_every_verb_of_a_bus_is_given_a_domain_or_has_a_rule(bus: SpanningBus) -> None:
    forgotten = []
    for path, part in verbs(bus._blank):
        if path in DECIDED | CLOSED:
            continue
        verb = getattr(part, path.rpartition(".")[2])
        given = inspect.signature(verb).parameters.get("domain")
        if not inspect.iscoroutinefunction(verb) or given is None or given.default is None:
            forgotten.append(path)
    assert forgotten == []


async def test_every_rule_is_about_a_verb_that_there_is(bus: SpanningBus) -> None:
    for path in DECIDED - {"upkeep.standing.settings"}:
        find(bus._blank, path)
        find(bus, path)


async def test_what_is_of_one_database_is_refused_with_what_to_do(bus: SpanningBus) -> None:
    with pytest.raises(InvalidOperationError, match="give the address of one shard"):
        await bus.upkeep.seal_audit()
    with pytest.raises(InvalidOperationError, match="name a domain"):
        async for _ in bus.replies():
            pass
    # What no rule is about finds no database.
    with pytest.raises(InvalidOperationError, match="give the address of one shard"):
        await bus._blank.get_command("mail", "018f6d2e-7b1c-7c3a-9f3e-0123456789ab")  # type: ignore[arg-type]
