"""What each database role must not do, over a real login: every attempt is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus.database.roles import ROLES
from tests.conftest import Server
from tests.integration.http_shop import Shop, fill
from tests.security.roled import RESTRICTED, RoledDatabase, roled_database
from tests.sql.helpers import Session
from tests.sql.tickets import submitted

pytestmark = pytest.mark.postgres

AUDIT = "commandbus.command_bus_audit"


@pytest.fixture(scope="module")
def database(server: Server, template: str) -> Iterator[RoledDatabase]:
    """One for all: what is refused changes nothing."""
    with roled_database(server, template) as made:
        yield made


@pytest.fixture
async def shop(database: RoledDatabase) -> Shop:
    async with database.bus("migrator") as bus:
        return await fill(bus, domain="shop")


#: Nobody but the owner, in whatever role.
FOR_NOBODY = [
    # the audit is only added to, and only by functions that say what happened
    f"update {AUDIT} set actor = 'eve'",
    f"delete from {AUDIT}",
    f"truncate {AUDIT}",
    f"insert into {AUDIT} (domain, command_id, event_type)"
    " values ('shop', gen_random_uuid(), 'SENT')",
    f"alter table {AUDIT} disable trigger command_bus_audit_append_only",
    f"alter table {AUDIT} add column x int",
    f"drop trigger command_bus_audit_append_only on {AUDIT}",
    f"create trigger mine before insert on {AUDIT} for each row execute function"
    " suppress_redundant_updates_trigger()",
    f"drop table {AUDIT}",
    f"lock table {AUDIT} in access exclusive mode",
    "select setval('commandbus.command_bus_audit_audit_id_seq', 1)",
    "select nextval('commandbus.command_bus_audit_audit_id_seq')",
    "select commandbus.prune_audit('shop', clock_timestamp(), 1000)",
    "select commandbus.set_retention(null, 'audit', '1 hour')",
    "create or replace function commandbus.refuse_audit_change() returns trigger language plpgsql"
    " as $$ begin return null; end $$",
    "set session_replication_role = replica",
    # rows by hand
    "update commandbus.command_bus_command set status = 'COMPLETED'",
    "delete from commandbus.command_bus_command",
    "insert into commandbus.command_bus_setting (name, value) values ('role_prefix', 'x')",
    "update commandbus.command_bus_setting set value = 'global' where name = 'command_id_scope'",
    "select commandbus.change_setting('payload_archive', 'on')",
    "update commandbus.command_bus_api_token set scopes = '{admin}'",
    # payloads and results, where they lie
    "select * from commandbus.command_bus_payload_archive",
    "select * from commandbus.command_bus_reply_inbox",
    "select * from pgmq.q_shop__commands",
    "select * from pgmq.a_shop__commands",
    "select * from pgmq.q_shop__replies",
    "select on_complete from commandbus.command_bus_batch",
    "select * from pgmq.read('shop__commands', 1, 1)",
    "select pgmq.purge_queue('shop__commands')",
    "select pgmq.drop_queue('shop__commands')",
    "select pgmq.create('mine')",
    "insert into pgmq.q_shop__commands (vt, message) values (now(), '{}')",
    # helpers of the functions
    "select commandbus.put_messages('shop.commands', array['{}'::jsonb])",
    "select * from commandbus.read_messages('shop.commands', now(), 1, 1)",
    "select commandbus.remove_commands('shop', '{}')",
    "select commandbus.ensure_queue('x.y')",
    # governed batches: who could name the state could do without the approval
    "select commandbus.queue_stored('shop', '{}', array['awaiting_approval'])",
    "select commandbus.dispatch_commands('shop', gen_random_uuid(), '{awaiting_approval}', 9)",
    "select commandbus.remove_governed_type('approvals', 'DecideTicket', 'BATCH_APPROVE')",
    "delete from commandbus.command_bus_governed_type",
    "select commandbus.lock_commands('shop', '{}')",
    "select commandbus.publish_replies('shop', '{}', '{}')",
    # objects that could stand in for ours
    "create table commandbus.mine (a int)",
    "create function commandbus.now() returns timestamptz language sql as $$ select null $$",
    "create function pgmq.delete(text, bigint[]) returns int language sql as $$ select 1 $$",
    "alter function commandbus.offer_one set search_path = public",
    "alter function commandbus.offer_one security invoker",
    "drop view commandbus.v_queue_lag",
    "grant select on commandbus.command_bus_reply_inbox to public",
    # other people's rights
    "set role {prefix}_migrator",
    "set session authorization {prefix}_migrator_login",
    "grant {prefix}_migrator to {login}",
    "alter role {login} superuser",
    "create role mine",
]  # fmt: skip

SENDERS = {"sender", "worker", "api"}
READERS = {"operator", "api", "reader"}

#: A statement, and the roles that may run it; all others are refused.
FOR_SOME: list[tuple[str, set[str]]] = [
    ("select commandbus.send_command('shop', 'Work', gen_random_uuid())", SENDERS),
    ("select * from commandbus.take_inbox_reply('shop', gen_random_uuid())", SENDERS),
    ("select * from commandbus.look_at_inbox_reply('shop', gen_random_uuid())", SENDERS),
    ("select * from commandbus.read_replies('shop.replies', 0, 1)", SENDERS),
    ("select * from commandbus.receive_commands('shop', 0, 1, 'w')", {"worker"}),
    ("select * from commandbus.settle_commands('shop', '{}')", {"worker"}),
    ("select commandbus.claim_chore('x', '1 hour')", {"worker"}),
    ("select commandbus.prune_due('audit', 'shop', 'infinity', 1)", {"worker"}),
    ("select * from commandbus.tend_archives()", {"worker"}),
    ("select commandbus.command_payload('shop', gen_random_uuid())", {"operator", "api"}),
    ("select * from commandbus.list_troubleshooting('shop', null, 1, 0)", {"operator", "api"}),
    ("select commandbus.operator_retry('shop', '{}')", {"operator", "api"}),
    ("select commandbus.cancel_commands('shop', '{}', 'x')", {"operator", "api"}),
    # with these a caller says itself whether it may pass governance by
    ("select commandbus.edit_for('shop', '{}', true, '{}', '{\"may_bypass\": true}')", {"api"}),
    ("select commandbus.start_bulk_for(gen_random_uuid(), 'shop', 'retry', '{}', '{}', null, true,"
     " null, '{\"may_bypass\": true}')", {"api"}),
    ("select * from commandbus.repair_queues('shop', 'x', 1)", {"operator", "api"}),
    ("select commandbus.create_api_token(replace(gen_random_uuid()::text, '-', ''), 'x', '{read}',"
     " null, null, 'x', null)", {"api"}),
    ("select secret_hash from commandbus.command_bus_api_token", {"api"}),
    ("select user_id from commandbus.command_bus_api_token", READERS),
    (f"select * from {AUDIT}", READERS),
    ("select * from commandbus.doctor()", READERS),
    ("select * from commandbus.batch_approval_tickets", READERS | {"worker"}),
    ("select arguments from commandbus.command_bus_bulk_operation", {"worker", "operator", "api"}),
    ("select last_error_msg from commandbus.command_bus_command", READERS | {"worker"}),
    ("select value from commandbus.command_bus_setting", set(RESTRICTED)),
]  # fmt: skip


async def is_refused(conn: psycopg.AsyncConnection[Any], statement: str) -> bool:
    try:
        async with conn.transaction(force_rollback=True):
            await conn.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


@pytest.mark.parametrize("role", RESTRICTED)
async def test_what_is_for_the_owner_alone_is_refused(
    database: RoledDatabase, shop: Shop, role: str
) -> None:
    names = {"prefix": database.prefix, "login": database.login(role)}
    async with database.connect(role) as conn:
        allowed = []
        for text in FOR_NOBODY:
            statement = text
            for name, value in names.items():
                statement = statement.replace("{" + name + "}", value)
            if not await is_refused(conn, statement):
                allowed.append(statement)
    assert allowed == []


@pytest.mark.parametrize("role", RESTRICTED)
async def test_each_role_may_do_its_own_part_and_no_other(
    database: RoledDatabase, shop: Shop, role: str
) -> None:
    async with database.connect(role) as conn:
        found = {text: not await is_refused(conn, text) for text, _ in FOR_SOME}
    assert found == {text: role in roles for text, roles in FOR_SOME}


@pytest.mark.parametrize("role", ["sender", "worker", "api"])
async def test_functions_for_replies_reach_no_other_queue(
    database: RoledDatabase, shop: Shop, role: str
) -> None:
    async with database.connect(role) as conn, database.connect("migrator") as owner:
        for name in ("printer", "printer__replies"):  # of another program, which the owner can read
            await owner.execute("select pgmq.create(%s)", (name,))
        for queue in (
            "shop.commands", "shop__commands", "shop__commands.x", "shop.x__commands",
            "shop.dispatch", "0ab12_shop__commands", "0ab12_shop.commands", "0ab12_shop.replies",
            "commands", "dispatch", "a.b.c", "shop.commands\n", "", "Shop.commands", "x" * 48,
            "printer", "printer.replies",
        ):  # fmt: skip
            for call in (
                "read_replies(%s, 0, 1)", "lease_replies(%s, 0, 1)", "delete_replies(%s, '{1}')",
                "archive_replies(%s, '{1}')", "acknowledge_replies(%s, '{1}', '{1}')",
            ):  # fmt: skip
                with pytest.raises(psycopg.Error) as info:
                    await conn.execute(f"select * from commandbus.{call}".encode(), (queue,))
                assert info.value.sqlstate == "CB005", (queue, call)


@pytest.mark.parametrize(
    "queue", ["shop.commands", "shop.dispatch", "0ab12_shop.replies", "shop__commands", "a.b.c"]
)
async def test_no_reply_is_asked_for_where_commands_are(
    database: RoledDatabase, shop: Shop, queue: str
) -> None:
    """A worker would publish it with the rights of the owner."""
    command = Jsonb([{"command_id": str(uuid4()), "type": "Work", "reply_to": queue}])
    async with database.connect("sender") as conn:
        for call, values in (
            ("send_command('shop', 'Work', gen_random_uuid(), '{}', %s)", (queue,)),
            ("send_commands('shop', %s)", (command,)),
            ("offer_one('shop', gen_random_uuid(), 'Work', %s, null, 3, '\"a\":1}')", (queue,)),
            ("send_packed('shop', gen_random_uuid()::text, 'Work', %s, '', '3', '')", (queue,)),
            ("create_batch('shop', gen_random_uuid(), %s)", (command,)),
            ("create_stored_batch('shop', gen_random_uuid(), %s, null, null, null, null, false,"
             " 'transactional')", (command,)),
            ("create_batch('shop', gen_random_uuid(), '[]', p_on_complete =>"
             " jsonb_build_object('domain', 'shop', 'type', 'Work', 'reply_to', %s::text))",
             (queue,)),
        ):  # fmt: skip
            with pytest.raises(psycopg.Error) as info:
                await conn.execute(f"select commandbus.{call}".encode(), values)
            assert info.value.sqlstate == "CB005", call


async def test_a_worker_cannot_prune_more_than_the_rules_say(
    database: RoledDatabase, shop: Shop
) -> None:
    async with database.connect("worker") as conn, database.connect("migrator") as owner:
        await owner.execute("select commandbus.set_retention('shop', 'audit', '1 hour')")
        await owner.execute("select commandbus.set_retention('other', 'audit', null)")
        count = f"select count(*) from {AUDIT}"
        before = await (await owner.execute(count.encode())).fetchall()
        for domain in ("shop", "other", "nowhere", "*"):
            for until in ("infinity", None, "now"):
                for what in ("audit", "archives", "replies", "commands", "batches"):
                    await conn.execute(
                        "select commandbus.prune_due(%s, %s, %s, 100000)", (what, domain, until)
                    )
        assert await (await owner.execute(count.encode())).fetchall() == before


async def test_a_worker_looks_after_parts_of_archives_and_reads_none(
    database: RoledDatabase, shop: Shop
) -> None:
    size = "update commandbus.command_bus_setting set value = '%s' where name = 'archive_part_rows'"
    async with database.connect("worker") as conn, database.connect("migrator") as owner:
        await owner.execute((size % 20).encode())
        await owner.execute("select commandbus.ensure_domain('grown')")
        gone = 0
        for _ in range(4):
            await owner.execute(
                "insert into pgmq.a_grown__commands (msg_id, vt, archived_at, message)"
                " select nextval('pgmq.q_grown__commands_msg_id_seq'), now(),"
                " now() - interval '9 days', '{}' from generate_series(1, 20)"
            )
            await owner.execute("select commandbus.set_retention('grown', 'archives', '1 day')")
            for _ in range(5):
                row = await (
                    await conn.execute("select o_gone from commandbus.tend_archives('grown')")
                ).fetchone()
                gone += (row and row[0]) or 0
        found = await (
            await owner.execute(
                "select piece::text from commandbus.archive_pieces('pgmq.a_grown__commands')"
            )
        ).fetchall()
        await owner.execute((size % 250_000).encode())
        assert gone >= 40
        assert len(found) > 1
        for (part,) in found:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await conn.execute(f"select * from {part}".encode())
        differences = await (
            await owner.execute("select problem from commandbus.role_differences()")
        ).fetchall()
        assert [each for (each,) in differences if "grown" in each] == []


@pytest.mark.parametrize("role", ["sender", "worker", "api"])
async def test_what_waits_for_an_approval_is_not_queued_by_those_who_queue(
    database: RoledDatabase, role: str
) -> None:
    async with database.connect("migrator") as owner, database.connect(role) as conn:
        ticket = await submitted(Session(owner), requires_approval=True)
        held = (
            "select array_agg(command_id) from commandbus.command_bus_command where batch_id = %s"
        )
        ((ids,),) = await (await owner.execute(held, (ticket,))).fetchall()

        await conn.execute("select commandbus.queue_pending('payments', %s)", (ids,))
        await conn.execute("select commandbus.dispatch_heartbeat(%s)", (ticket,))

        waiting = (
            "select count(*) from commandbus.command_bus_command"
            " where batch_id = %s and dispatch_status = 'awaiting_approval' and msg_id is null"
        )
        assert await (await owner.execute(waiting, (ticket,))).fetchone() == (len(ids),)


#: What an attacker may put in the way of names, in a schema of their own or a temporary one.
SHADOWS = (
    "create function {place}.clock_timestamp() returns timestamptz language plpgsql as"
    " $$ begin insert into {place}.trap values (current_user); return pg_catalog.clock_timestamp();"
    " end $$",
    "create function {place}.jsonb_build_object(variadic text[]) returns jsonb language plpgsql as"
    " $$ begin insert into {place}.trap values (current_user); return '{{}}'; end $$",
    "create function {place}.same(a text, b text) returns boolean language plpgsql as"
    " $$ begin insert into {place}.trap values (current_user); return true; end $$",
    "create operator {place}.= (leftarg = text, rightarg = text, function = {place}.same)",
)


@pytest.mark.parametrize("place", ["pg_temp", "own"])
async def test_names_that_a_caller_puts_in_the_way_are_not_used(
    database: RoledDatabase, shop: Shop, place: str
) -> None:
    async with database.connect("worker") as conn:
        schema = "pg_temp" if place == "pg_temp" else f"own_{uuid4().hex[:8]}"
        if place == "own":
            # as the schema public was for everybody before PostgreSQL 15
            async with await psycopg.AsyncConnection.connect(
                database.owner, autocommit=True
            ) as admin:
                await admin.execute(f"create schema {schema}".encode())
                await admin.execute(f"grant all on schema {schema} to public".encode())
        await conn.execute(f"create table {schema}.trap (who text)".encode())
        await conn.execute(f"create table {schema}.command_bus_command (like pg_class)".encode())
        await conn.execute(f"create table {schema}.pg_proc (a int)".encode())
        for text in SHADOWS:
            await conn.execute(text.replace("{place}", schema).replace("{{}}", "{}").encode())
        await conn.execute(f"grant all on {schema}.trap to public".encode())
        await conn.execute(f"set search_path = {schema}, pg_catalog, commandbus, pgmq".encode())

        await conn.execute("select commandbus.send_command('shop', 'Work', gen_random_uuid())")
        await conn.execute("select * from commandbus.receive_commands('shop', 60, 10, 'w')")
        await conn.execute("select commandbus.ensure_domain('fresh')")
        await conn.execute("select commandbus.prune_due('audit', 'shop', now(), 10)")
        await conn.execute("select * from commandbus.read_replies('shop.replies', 0, 10)")

        rows = await (await conn.execute(f"select who from {schema}.trap".encode())).fetchall()
        assert {row[0] for row in rows} <= {database.login("worker")}


def test_the_owner_and_the_roles_cannot_log_in(database: RoledDatabase) -> None:
    with psycopg.connect(database.owner) as admin:
        rows = admin.execute(
            "select rolcanlogin, rolsuper, rolcreaterole, rolbypassrls from pg_roles"
            " where rolname = any(%s)",
            ([f"{database.prefix}_{role}" for role in ROLES],),
        ).fetchall()
    assert rows == [(False, False, False, False)] * len(ROLES)
