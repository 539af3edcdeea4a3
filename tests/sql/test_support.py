"""Names, queues, wake-ups and heartbeats."""

from __future__ import annotations

import psycopg
import pytest

from commandbus.names import check_domain, inbox_channel, physical_queue, wakeup_channel
from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session


@pytest.mark.parametrize(
    "domain",
    ["a", "payments", "pay_ments", "a" * 37, "a" * 38, "", "A", "a-b", "a.b", "a__b", "_a", "1a",
     "a ", "ä", "a\n", "trailing_"],
)  # fmt: skip
async def test_sql_and_python_agree_on_what_a_domain_is(db: Session, domain: str) -> None:
    def python_accepts() -> bool:
        try:
            check_domain(domain)
        except ValueError:
            return False
        return True

    async def refusal() -> str | None:
        try:
            await db.value("select commandbus.check_domain(%s)", domain)
        except psycopg.Error as error:
            return error.sqlstate
        return None

    assert await refusal() == (None if python_accepts() else "CB005")


@pytest.mark.parametrize("queue", ["payments.commands", "shared", "a_b.replies"])
async def test_sql_and_python_agree_on_physical_names(db: Session, queue: str) -> None:
    assert await db.value("select commandbus.physical_queue(%s)", queue) == physical_queue(queue)


async def test_a_domain_gets_its_two_queues_once(db: Session) -> None:
    for _ in range(2):
        await db.value("select commandbus.ensure_domain('payments')")
    rows = await db.rows("select queue_name from pgmq.meta order by 1")
    assert [row["queue_name"] for row in rows] == ["payments__commands", "payments__replies"]
    assert await db.value("select commandbus.queue_exists('payments.commands')")
    assert not await db.value("select commandbus.queue_exists('orders.commands')")


async def test_a_domain_that_has_its_queues_waits_for_nobody_who_uses_them(
    db: Session, session: Open
) -> None:
    await db.send()
    await (await session()).receive()  # in a transaction that goes on
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    for queue in ("commands", "replies"):
        await db.value("select commandbus.ensure_queue(%s)", f"{DOMAIN}.{queue}")


async def test_a_new_queue_is_vacuumed_eagerly(db: Session) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    options = await db.value(
        "select reloptions from pg_class where oid = 'pgmq.q_payments__commands'::regclass"
    )
    assert "autovacuum_vacuum_scale_factor=0.01" in options


async def heard(listener: Session) -> list[str]:
    """What was notified so far. A statement of our own fetches what the server has for us."""
    found = [n.channel async for n in listener.conn.notifies(timeout=0.0)]
    await listener.value("select 1")
    return found + [n.channel async for n in listener.conn.notifies(timeout=0.0)]


@pytest.fixture
async def listener(session: Open) -> Session:
    listening = await session()
    await listening.conn.set_autocommit(True)
    for channel in (wakeup_channel(DOMAIN), inbox_channel(DOMAIN), wakeup_channel("orders")):
        await listening.rows(f'listen "{channel}"')
    return listening


async def heartbeat(db: Session, *, is_idle: bool, domain: str = DOMAIN) -> None:
    await db.rows("select commandbus.worker_heartbeat('w1', %s, %s, 10, 0)", domain, is_idle)


async def test_a_send_wakes_an_idle_worker_once(db: Session, listener: Session) -> None:
    await heartbeat(db, is_idle=True)
    await db.send()
    assert await heard(listener) == ["commandbus.payments"]


async def test_a_send_wakes_nobody_when_no_worker_waits(db: Session, listener: Session) -> None:
    await db.send()  # no worker at all
    await heartbeat(db, is_idle=False)
    await db.send()  # a busy one
    await heartbeat(db, is_idle=True, domain="orders")
    await db.rows("update commandbus.command_bus_worker set domain = 'orders'")
    await db.send()  # one of another domain
    await db.rows("update commandbus.command_bus_worker set domain = 'payments'")
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '31 seconds'"
    )
    await db.send()  # one that has not been heard of for long
    assert await heard(listener) == []
    await heartbeat(db, is_idle=True)
    await db.send()
    assert await heard(listener) == ["commandbus.payments"]


async def test_a_send_that_is_rolled_back_wakes_nobody(db: Session, listener: Session) -> None:
    await heartbeat(db, is_idle=True)
    async with db.conn.transaction(force_rollback=True):
        await db.send()
    assert await heard(listener) == []


async def test_a_refused_duplicate_wakes_nobody(db: Session, listener: Session) -> None:
    (known,) = await db.send()
    await heartbeat(db, is_idle=True)
    assert await db.offer(known) == [known]
    assert await heard(listener) == []


async def test_an_operators_retry_and_a_release_wake_an_idle_worker(
    db: Session, listener: Session
) -> None:
    parked = await db.put("IN_TROUBLESHOOTING_QUEUE")
    held = await db.put("IN_PROGRESS")
    await heartbeat(db, is_idle=True)
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [parked.command_id])
    assert await heard(listener) == ["commandbus.payments"]
    await db.settle("release", held.item())
    assert await heard(listener) == ["commandbus.payments"]


async def test_a_reply_into_the_inbox_wakes_whoever_waits_there(
    db: Session, listener: Session
) -> None:
    await db.send(reply_to="@inbox")
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    assert await heard(listener) == ["commandbus.payments.inbox"]


async def test_a_heartbeat_keeps_one_row_for_a_worker(db: Session) -> None:
    await heartbeat(db, is_idle=False)
    await db.rows("update commandbus.command_bus_worker set heartbeat_at = now() - interval '1 h'")
    await heartbeat(db, is_idle=True)
    (row,) = await db.rows(
        "select *, heartbeat_at > now() - interval '1 min' as is_fresh"
        " from commandbus.command_bus_worker"
    )
    assert (row["worker_id"], row["is_idle"], row["is_fresh"]) == ("w1", True, True)


async def test_a_worker_that_goes_takes_the_long_dead_with_it(db: Session) -> None:
    for worker in ("w1", "w2", "w3"):
        await db.rows("select commandbus.worker_heartbeat(%s, 'payments', true, 1, 0)", worker)
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '25 h'"
        " where worker_id = 'w2'"
    )
    await db.rows("select commandbus.worker_gone('w1')")
    rows = await db.rows("select worker_id from commandbus.command_bus_worker")
    assert [row["worker_id"] for row in rows] == ["w3"]


async def test_no_domain_is_no_domain(db: Session) -> None:
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.check_domain(null)")
    assert info.value.sqlstate == "CB005"
