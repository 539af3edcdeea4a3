"""A batch reaches its end, whatever somebody sends or asks for beside it."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import Session

pytestmark = pytest.mark.postgres


@pytest.fixture
def db(conn: psycopg.AsyncConnection) -> Session:
    return Session(conn)


async def create(db: Session, closing: dict[str, object]) -> tuple[UUID, UUID]:
    """A batch of one command that asks for a command at its end."""
    batch, command = uuid4(), uuid4()
    await db.value(
        "select commandbus.create_batch(%s, %s, %s, p_on_complete => %s)",
        db.domain, batch, Jsonb([{"command_id": str(command), "type": "Work"}]), Jsonb(closing),
    )  # fmt: skip
    return batch, command


async def test_who_takes_the_id_of_the_closing_command_does_not_keep_a_batch_open(
    db: Session,
) -> None:
    """Its id follows from that of the batch, and anybody may send under any id."""
    batch, command = await create(db, {"domain": db.domain, "type": "Close"})
    others = uuid4()
    await db.send(others)
    taken = await db.value("select commandbus.closing_command_id(%s, 1)", batch)
    await db.value("select commandbus.send_command(%s, 'Mine', %s)", db.domain, taken)

    held = {each.command_id: each for each in await db.receive(10)}
    # in one set: what others sent must not be rolled back with it
    await db.settle("complete", *(held[each].item(data=None) for each in (command, others)))

    assert (await db.batch_row(batch))["status"] == "COMPLETED"
    assert await db.value(
        "select details_json ->> 'closing_command' from commandbus.command_bus_audit"
        " where command_id = %s and event_type = 'BATCH_COMPLETED'", batch,
    ) == "its id was taken"  # fmt: skip
    assert await db.value(
        "select command_type from commandbus.command_bus_command where command_id = %s", taken
    ) == "Mine"  # fmt: skip


@pytest.mark.parametrize(
    "closing",
    [
        {"domain": "No Domain", "type": "Close"},
        {"type": "Close"},
        {"domain": "shop"},
        {"domain": "shop", "type": "Close", "reply_to": "shop.commands"},
        {"domain": "shop", "type": "Close", "reply_to": "No Queue"},
    ],
)
async def test_a_command_that_could_not_be_sent_at_the_end_is_refused_at_the_beginning(
    db: Session, closing: dict[str, object]
) -> None:
    with pytest.raises(psycopg.Error) as info:
        await create(db, closing)
    assert info.value.sqlstate == "CB005"
    with pytest.raises(psycopg.Error) as info:
        await db.value(
            "select commandbus.begin_load(%s, %s, 'x', '{}', 'auto', p_on_complete => %s)",
            db.domain, uuid4(), Jsonb(closing),
        )  # fmt: skip
    assert info.value.sqlstate == "CB005"
