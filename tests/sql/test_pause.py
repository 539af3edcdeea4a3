"""A paused domain: nothing of it is leased, by whomever and however often it is paused."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session

NOBODY = "00000000-0000-0000-0000-000000000000"
FLOW = "select * from commandbus.command_bus_flow"


async def pause(
    db: Session, reason: str = "the bank is closed", until: str | None = None, by: str = "ann"
) -> None:
    await db.rows(
        "select commandbus.pause_domain(%s, %s, clock_timestamp() + cast(%s as interval), %s)",
        DOMAIN, reason, until, by,
    )  # fmt: skip


async def resume(db: Session, by: str = "bob") -> bool:
    resumed: bool = await db.value("select commandbus.resume_domain(%s, %s)", DOMAIN, by)
    return resumed


async def over(db: Session) -> None:
    """As if the end of the pause had come."""
    await db.rows(
        "update commandbus.command_bus_flow set paused_until = clock_timestamp() - interval '1 ms'"
    )


async def trail(db: Session) -> list[tuple[Any, ...]]:
    rows = await db.rows(
        "select event_type, actor, details_json ->> 'reason' as reason"
        " from commandbus.command_bus_audit where command_id = %s order by audit_id",
        NOBODY,
    )
    return [tuple(row.values()) for row in rows]


async def paused(db: Session) -> list[dict[str, Any]]:
    return await db.rows("select * from commandbus.paused_domains()")


async def test_a_paused_domain_leases_nothing_and_takes_everything(db: Session) -> None:
    await db.send()
    await pause(db)
    await db.send()

    assert await db.receive() == []
    assert await resume(db)
    assert len(await db.receive()) == 2


async def test_what_runs_goes_on_extends_and_ends(db: Session) -> None:
    await db.send()
    await db.send()
    done, failed = await db.receive()
    await pause(db)

    extended = await db.rows(
        "select * from commandbus.extend_leases(%s, jsonb_build_array(cast(%s as jsonb)), 60)",
        DOMAIN, psycopg.types.json.Jsonb(done.item()),
    )  # fmt: skip
    assert extended == []
    assert await db.settle("complete", done.item(data=None)) == []
    assert await db.settle("retry", failed.item(delay_seconds=0, **FAILURE)) == []
    assert await db.receive() == [], "its retry waits"


async def test_it_says_who_why_and_until_when(db: Session) -> None:
    await db.send()
    await pause(db, until="1 hour")

    (row,) = await paused(db)
    assert (row["domain"], row["paused_by"], row["pause_reason"]) == (
        DOMAIN, "ann", "the bank is closed",
    )  # fmt: skip
    assert row["paused_until"] > row["paused_at"]
    assert await trail(db) == [("PAUSED", "ann", "the bank is closed")]


async def test_the_newer_pause_holds_and_the_audit_has_both(db: Session) -> None:
    await db.send()
    await pause(db, until="1 hour")
    await pause(db, reason="and now the network", by="bob")

    (row,) = await paused(db)
    assert (row["pause_reason"], row["paused_by"], row["paused_until"]) == (
        "and now the network", "bob", None,
    )  # fmt: skip
    assert [line[:2] for line in await trail(db)] == [("PAUSED", "ann"), ("PAUSED", "bob")]


async def test_a_domain_that_has_not_begun_is_not_paused(db: Session) -> None:
    with pytest.raises(psycopg.errors.DatabaseError, match="there is no domain 'payments'"):
        await pause(db)
    assert await db.rows(FLOW) == []


async def test_a_second_resume_changes_nothing(db: Session) -> None:
    await db.send()
    await pause(db)

    assert [await resume(db), await resume(db)] == [True, False]
    assert [line[:2] for line in await trail(db)] == [("PAUSED", "ann"), ("RESUMED", "bob")]


async def test_a_domain_that_never_was_paused_is_not_resumed(db: Session) -> None:
    await db.send()
    assert not await resume(db)
    assert await trail(db) == []


async def test_its_end_comes_by_itself_before_any_chore(db: Session) -> None:
    await db.send()
    await pause(db, until="1 hour")
    await over(db)

    assert await paused(db) == []
    assert len(await db.receive()) == 1


async def test_the_chore_says_in_the_audit_that_it_is_over_once(db: Session) -> None:
    await db.send()
    await pause(db, until="1 hour")
    assert await db.value("select commandbus.end_pauses()") == 0
    await over(db)

    assert [await db.value("select commandbus.end_pauses()") for _ in range(2)] == [1, 0]
    assert [line[:2] for line in await trail(db)] == [("PAUSED", "ann"), ("RESUMED", None)]
    (row,) = await db.rows(FLOW)
    assert (row["paused_at"], row["paused_until"], row["pause_reason"]) == (None, None, None)


@pytest.mark.parametrize("verb", [pause, resume])
async def test_who_comes_before_the_chore_writes_its_line(db: Session, verb: Any) -> None:
    await db.send()
    await pause(db, until="1 hour")
    await over(db)
    await verb(db)

    assert [line[:2] for line in await trail(db)][:2] == [("PAUSED", "ann"), ("RESUMED", None)]
    assert len(await paused(db)) == (verb is pause)


async def test_a_chore_leaves_a_pause_alone_that_somebody_just_renews(
    db: Session, session: Open
) -> None:
    await db.send()
    await pause(db, until="1 hour")
    await over(db)
    other = await session()
    await pause(other, reason="again")

    assert await db.value("select commandbus.end_pauses()") == 0
    await other.conn.commit()
    assert [row["pause_reason"] for row in await paused(db)] == ["again"]


@pytest.mark.parametrize(
    ("domain", "reason", "until", "says"),
    [
        ("payments", "", "1 hour", "reason"),
        ("payments", "  ", "1 hour", "reason"),
        ("payments", None, "1 hour", "reason"),
        ("payments", "x" * 1_001, "1 hour", "1 to 1000"),
        ("payments", "why", "-1 hour", "not in the future"),
        ("payments", "why", "0", "not in the future"),
        ("nowhere", "why", None, "no domain 'nowhere'"),
        ("No-Where", "why", None, "domain"),
    ],
)
async def test_a_pause_that_cannot_be_is_refused(
    db: Session, domain: str, reason: str | None, until: str | None, says: str
) -> None:
    await db.send()
    with pytest.raises(psycopg.Error, match=says) as refused:
        await db.rows(
            "select commandbus.pause_domain(%s, %s, clock_timestamp() + cast(%s as interval))",
            domain, reason, until,
        )  # fmt: skip
    assert refused.value.sqlstate in {"CB012", "CB005"}
    assert (await paused(db), await trail(db)) == ([], [])


async def test_a_pause_of_infinity_is_refused(db: Session) -> None:
    await db.send()
    with pytest.raises(psycopg.Error, match="not in the future"):
        await db.rows("select commandbus.pause_domain(%s, 'why', 'infinity')", DOMAIN)


async def test_no_receive_that_begins_after_the_commit_leases_anything(
    db: Session, session: Open
) -> None:
    """Many sessions receive all the time; who began after the commit got nothing."""
    for _ in range(50):
        await db.send()
    sessions = [await session() for _ in range(4)]
    begun_later: list[int] = []
    is_committed = asyncio.Event()
    is_enough = asyncio.Event()

    async def receives(one: Session) -> None:
        while not is_enough.is_set():
            was_committed = is_committed.is_set()
            found = await one.receive(1)
            await one.conn.commit()
            if was_committed:
                begun_later.append(len(found))
                if len(begun_later) >= 20:
                    is_enough.set()

    tasks = [asyncio.create_task(receives(one)) for one in sessions]
    await pause(db)
    is_committed.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert set(begun_later) == {0}


async def test_idle_workers_are_not_told_that_a_paused_domain_is_due(db: Session) -> None:
    await db.send()
    due = "select seconds from commandbus.due_in(array['payments'])"
    assert await db.value(due) == 0
    await pause(db)
    assert await db.rows(due) == []
    assert await db.rows("select * from commandbus.due_domains(array['payments'])") == []
    await pause(db, until="1 minute")
    assert 55 < await db.value(due) <= 60
    await over(db)
    assert await db.value(due) == 0


async def test_expiry_goes_on_in_a_paused_domain(db: Session) -> None:
    (sent,) = await db.send(expires_in_seconds=60)
    await pause(db)
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp() - interval '1 ms'"
    )
    await db.rows("update commandbus.command_bus_expiry set look_at = clock_timestamp()")
    assert await db.value("select commandbus.end_expired()") == 1
    assert await db.status(sent) == "CANCELED"
