"""Failure groups: parked commands by cause, counted exactly. The bus in memory has none."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commandbus import CommandBus
from commandbus.database.model import Failure, Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.models import ParkReason
from commandbus.paging import MAX_LIMIT
from commandbus.troubleshooting.groups import Groups
from commandbus.troubleshooting.model import FailureGroup
from tests.conformance.worlds import DOMAIN, World, done, new

pytestmark = pytest.mark.postgres

MESSAGES = {
    "order 17 of customer 4711 failed": "order <n> of customer <n> failed",
    "no account 'DE89 3704' for \"Ann\"": "no account <text> for <text>",
    "can't open it, don't ask": "can't open it, don't ask",
    "mail to ann.b+x@example.com bounced": "mail to <email> bounced",
    "0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11 is gone": "<uuid> is gone",
    "at 2026-11-16T00:25:29.123Z, before 2026-11-16": "at <time>, before <time>",
    "2026-11-16 00:25:29+01:00 too late": "<time> too late",
    "at 0x7fff12ab, hash deadbeef01": "at <hex>, hash <hex>",
    "feedback of 1,234.50 at 12:30:01": "feedback of <n> at <n>",
    "HTTP/1.1 503 from 10.0.0.17:8080": "HTTP/<n> <n> from <n>",
    "  a \t b\r\n c  ": "a b c",
    "": "",
    "x" * 300: "x" * 200,
}


@pytest.fixture
def address(shared_dsn: str) -> str:
    """The database of this test; there is no turn of the store in memory."""
    return shared_dsn


def broken(
    lease: Lease, message: str | None, code: str = "DOWN", kind: str = "TRANSIENT"
) -> Outcome:
    failure = Failure(kind, code, message)  # type: ignore[arg-type]
    return Outcome(lease, OutcomeKind.PARK, reason=ParkReason.EXHAUSTED, failure=failure)


async def groups(store: Store, domain: str | None = DOMAIN, **options: Any) -> list[FailureGroup]:
    options = {"command_type": None, "include_empty": False, "limit": MAX_LIMIT} | options
    return await Groups(store).groups(domain, **options)


async def listed(store: Store, **options: Any) -> list[tuple[str, int]]:
    """(message, how many are parked) of each group, as it is listed."""
    return [(g.message, g.parked_count) for g in await groups(store, **options)]


async def test_a_message_is_normalised(world: World, store: Store) -> None:
    leases = await world.send_and_receive(*(new() for _ in MESSAGES))
    await world.settle(*(broken(lease, text) for lease, text in zip(leases, MESSAGES, strict=True)))

    assert sorted(await listed(store)) == sorted((text, 1) for text in MESSAGES.values())


TEXTS = st.text(
    st.one_of(
        st.sampled_from("0123456789abcdefABCDEFxXTZ'\"@.,:+-_% \t\n\r\f\v"),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    ),
    max_size=120,
)
SHARDS = st.sampled_from(
    [*MESSAGES, "2026-11-16", "T00:25", "deadbeef", "'", '"', "a@b", "-", "12345678", "0x"]
)


def test_what_is_normalised_is_short_and_has_no_number_and_one_kind_of_space(
    shared_dsn: str,
) -> None:
    with psycopg.connect(shared_dsn, autocommit=True) as conn:

        @settings(
            max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        @given(st.lists(st.one_of(TEXTS, SHARDS), max_size=6).map("".join))
        def check(text: str) -> None:
            row = conn.execute("select commandbus.normalise_message(%s)", (text,)).fetchone()
            assert row is not None
            assert len(row[0]) <= 200
            assert not re.search(r"[0-9]|[\t\n\r\f\v]|  |^ ", row[0])

        check()


async def test_commands_with_one_cause_are_one_group(world: World, store: Store) -> None:
    first, *leases = await world.send_and_receive(*(new() for _ in range(5)), new("Credit"))
    await world.settle(broken(first, "order 1 failed"))
    await world.settle(
        broken(leases[0], "order 22 failed"),
        broken(leases[1], "order 333 failed", code="LATE"),
        broken(leases[2], "order 4 failed", kind="PERMANENT"),
        broken(leases[3], "order 5 was lost"),
        broken(leases[4], "order 6 failed"),
    )

    found = await groups(store)
    assert sorted(
        (g.command_type, g.error_class, g.error_code, g.message, g.parked_count) for g in found
    ) == [
        ("Credit", "TRANSIENT", "DOWN", "order <n> failed", 1),
        ("Debit", "PERMANENT", "DOWN", "order <n> failed", 1),
        ("Debit", "TRANSIENT", "DOWN", "order <n> failed", 2),
        ("Debit", "TRANSIENT", "DOWN", "order <n> was lost", 1),
        ("Debit", "TRANSIENT", "LATE", "order <n> failed", 1),
    ]
    largest = found[0]
    assert (largest.parked_count, largest.total_seen) == (2, 2)
    assert (largest.sample_message, largest.sample_command_id) == (
        "order 22 failed",
        leases[0].command_id,
    )
    assert largest.first_seen <= largest.last_seen
    assert len({g.fingerprint for g in found}) == 5
    assert all(len(g.fingerprint) == 16 for g in found)


async def test_a_group_is_listed_by_domain_type_and_the_beginning_of_its_name(
    world: World, store: Store
) -> None:
    leases = await world.send_and_receive(new(), new("Credit"))
    await world.settle(*(broken(lease, "no") for lease in leases))

    assert await listed(store, command_type="Credit") == [("no", 1)]
    assert await listed(store, limit=1) == [("no", 1)]
    assert len(await listed(store)) == 2
    everywhere = await groups(store, None)
    assert {g.domain for g in everywhere} == {DOMAIN}
    assert await groups(store, "other", include_empty=True) == []
    first, second = everywhere
    assert first.fingerprint[:15] != second.fingerprint[:15]
    assert await Groups(store).require_group(first.fingerprint[:15], DOMAIN) == first
    assert await Groups(store).require_group(second.fingerprint[:15], None) == second
    with pytest.raises(InvalidOperationError, match=r"no failure group .* in domain 'other'"):
        await Groups(store).require_group(first.fingerprint, "other")
    with pytest.raises(InvalidInputError, match="is not the fingerprint"):
        await Groups(store).require_group("x", DOMAIN)


async def test_every_way_out_of_troubleshooting_counts_down_and_a_new_failure_counts_up(
    world: World, store: Store
) -> None:
    ids = [uuid4() for _ in range(4)]
    leases = await world.send_and_receive(*(new(command_id=i) for i in ids))
    await world.settle(*(broken(lease, "no") for lease in leases))

    await store.operator_retry(DOMAIN, ids[:2], actor=None, reset_attempts=True)
    assert await listed(store) == [("no", 2)]
    await store.operator_cancel(DOMAIN, [ids[2]], reason="x", actor=None)
    assert await listed(store) == [("no", 1)]
    await store.operator_complete(DOMAIN, [ids[3]], result=b"null", actor=None)
    assert await listed(store) == []
    assert await listed(store, include_empty=True) == [("no", 0)]

    again, fine = await world.receive()
    await world.settle(broken(again, "no"), done(fine))
    [group] = await groups(store)
    assert (group.parked_count, group.total_seen) == (1, 5)


async def test_a_batch_that_is_sent_again_leaves_its_groups(world: World, store: Store) -> None:
    batch_id = await world.create_batch(new(), new())
    parked, failed = await world.receive()
    await world.settle(
        broken(parked, "no"),
        Outcome(failed, OutcomeKind.FAIL, failure=Failure("PERMANENT", "X", "no")),
    )
    assert await listed(store) == [("no", 1)]

    assert await store.retry_batch(DOMAIN, batch_id, actor=None) == 2

    assert await listed(store) == []


async def test_a_command_whose_worker_died_is_in_a_group_too(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new(max_attempts=1))
    assert await store.confirm_start(lease)
    await world.lapse()
    assert await world.receive() == []

    [group] = await groups(store)
    assert (group.error_code, group.parked_count) == ("LEASE_EXPIRED", 1)
    assert group.message.startswith("the lease ran out before a result came, attempt <n> of <n>: ")
    assert "w1" not in group.message  # a group is not one worker's


async def test_the_members_of_a_group_are_listed(world: World, store: Store) -> None:
    leases = await world.send_and_receive(new(), new(), new())
    await world.settle(*(broken(lease, "no") for lease in leases[:2]), broken(leases[2], "never"))
    [group] = await groups(store, limit=1)
    troubleshooting = CommandBus(store=store).troubleshooting

    page = await troubleshooting.page(DOMAIN, group=group.fingerprint)

    assert {item.command_id for item in page.items} == {lease.command_id for lease in leases[:2]}
