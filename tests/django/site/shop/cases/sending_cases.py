"""Sending on Django's own connection."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from commandbus import BatchCommand, CommandStatus, DuplicateCommandError, new_id
from commandbus.database.gateway import LEVELS_SECONDS
from commandbus.django import bus
from commandbus.errors import InvalidInputError, InvalidOperationError
from shop.models import Order


class Undo(Exception):
    """Leaves a transaction without a commit."""


class Sending(TransactionTestCase):
    def test_a_rollback_takes_the_command_along(self) -> None:
        command_id = new_id()
        with self.assertRaises(Undo), transaction.atomic():
            Order.objects.create(number="1")
            bus.send("shop", "Pay", command_id, {"number": "1"})
            self.assertIsNotNone(bus.get_command("shop", command_id))
            raise Undo
        self.assertIsNone(bus.get_command("shop", command_id))
        self.assertEqual(Order.objects.count(), 0)

    def test_a_savepoint_takes_the_command_along(self) -> None:
        kept, undone = new_id(), new_id()
        with transaction.atomic():
            bus.send("shop", "Pay", kept, {})
            with self.assertRaises(Undo), transaction.atomic():
                bus.send("shop", "Pay", undone, {})
                raise Undo
        self.assertIsNotNone(bus.get_command("shop", kept))
        self.assertIsNone(bus.get_command("shop", undone))

    def test_marks_of_the_handlers_are_known_to_others_before_a_worker_runs(self) -> None:
        with transaction.atomic():
            bus.send("shop", "Transfer", new_id(), {"iban": "DE89", "number": "1"})
            with connection.cursor() as cursor:
                cursor.execute(
                    "select count(*) from pg_locks where pid = pg_backend_pid() and relation ="
                    " to_regclass('commandbus.command_bus_secret_key')"
                )
                self.assertEqual(cursor.fetchone(), (0,))  # other first senders would wait for it
                cursor.execute("select command_type, key from commandbus.command_bus_secret_key")
                self.assertEqual(cursor.fetchall(), [("Transfer", "iban")])

    def test_outside_a_transaction_a_send_is_its_own(self) -> None:
        command_id = bus.send("shop", "Pay", new_id(), {})
        found = bus.get_command("shop", command_id)
        assert found is not None
        self.assertEqual(found.status, CommandStatus.PENDING)
        self.assertEqual(found.reply_queue, "")

    def test_the_first_send_of_a_domain_leaves_no_lock_in_the_transaction(self) -> None:
        with transaction.atomic():
            bus.send("never_seen", "Pay", new_id(), {}, priority=1)
            bus.send("never_seen", "Pay", new_id(), {}, ordering_key="k")
            with connection.cursor() as cursor:
                cursor.execute(
                    "select count(*) from pg_locks where pid = pg_backend_pid()"
                    " and mode in ('ExclusiveLock', 'AccessExclusiveLock')"
                    " and locktype = 'relation'"
                )
                self.assertEqual(cursor.fetchone(), (0,))

    def test_no_send_holds_the_row_of_its_domain_however_long_the_process_runs(self) -> None:
        bus.send("aged", "Pay", new_id(), {}, priority=1)
        with connection.cursor() as cursor:
            cursor.execute(
                "update commandbus.command_bus_flow set updated_at = now() - interval '61 minutes'"
                " where domain = 'aged'"
            )
        later = time.monotonic() + LEVELS_SECONDS + 1
        with (
            mock.patch("commandbus.database.direct.time.monotonic", lambda: later),
            transaction.atomic(),
        ):
            bus.send("aged", "Pay", new_id(), {}, priority=1)
            other = connection.copy()
            try:
                with other.cursor() as cursor:
                    cursor.execute(
                        "select updated_at > now() - interval '1 minute' from"
                        " commandbus.command_bus_flow where domain = 'aged' for update nowait"
                    )
                    self.assertEqual(cursor.fetchone(), (True,))
            finally:
                other.close()

    def test_threads_share_what_never_changes_and_another_setting_is_another_bus(self) -> None:
        own = bus._bridge.open()
        self.assertIs(bus._bridge.open(), own)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(bus._bridge.open).result()
        self.assertIs(other._registry, own._registry)
        self.assertIsNot(other._sending, own._sending)
        with override_settings(COMMANDBUS={"SETTINGS": {"max_send_many": 1}}):
            self.assertEqual(bus._bridge.open()._settings.max_send_many, 1)
        self.assertNotEqual(bus._bridge.open()._settings.max_send_many, 1)

    def test_a_duplicate_leaves_the_transaction_usable(self) -> None:
        command_id = bus.send("shop", "Pay", new_id(), {})
        with transaction.atomic():
            with self.assertRaises(DuplicateCommandError):
                bus.send("shop", "Pay", command_id, {})
            Order.objects.create(number="2")
        self.assertEqual(Order.objects.count(), 1)

    def test_many_commands_and_batches_join_the_transaction(self) -> None:
        commands = [BatchCommand("Pay", new_id(), {"n": n}) for n in range(3)]
        with self.assertRaises(Undo), transaction.atomic():
            self.assertEqual(len(bus.send_many("shop", iter(commands)).sent), 3)
            batch = bus.create_batch("shop", [BatchCommand("Pay", new_id(), {})])
            raise Undo
        self.assertIsNone(bus.get_batch("shop", batch))
        report = bus.send_many("shop", [*commands, commands[0]], on_duplicate="skip")
        self.assertEqual((len(report.sent), len(report.skipped)), (3, 1))

    def test_a_unique_key_is_held_by_the_first(self) -> None:
        first = bus.send("shop", "Pay", new_id(), {}, unique_key="u")
        again = bus.send("shop", "Pay", new_id(), {}, unique_key="u", on_duplicate="skip")
        self.assertEqual(again, first)

    def test_using_names_another_alias(self) -> None:
        command_id = bus.using("default").send("shop", "Pay", new_id(), {})
        self.assertIsNotNone(bus.get_command("shop", command_id))

    async def test_async_code_joins_the_transaction_of_its_request(self) -> None:
        command_id = await bus.asend("shop", "Pay", new_id(), {})
        self.assertEqual(await bus.acancel("shop", command_id, "not needed"), "canceled")
        report = await bus.asend_many("shop", [BatchCommand("Pay", new_id(), {})])
        self.assertEqual(len(report.sent), 1)
        with self.assertRaises(SynchronousOnlyOperation):
            bus.send("shop", "Pay", new_id(), {})


class Refusals(TestCase):
    def test_another_connection_is_refused(self) -> None:
        with self.assertRaisesMessage(InvalidInputError, "leave conn out"):
            bus.send("shop", "Pay", new_id(), {}, conn=object())

    def test_verbs_that_wait_are_refused_and_send_nothing(self) -> None:
        with self.assertRaisesMessage(InvalidOperationError, "does not wait for replies"):
            bus.call("shop", "Pay", {})
        with self.assertRaisesMessage(InvalidOperationError, "event loop"):
            next(iter(bus.replies("shop", wait=True)))
        with self.assertRaisesMessage(InvalidOperationError, "event loop"):
            bus.create_batch("shop", [BatchCommand("Pay", new_id(), {})], on_complete=print)

    def test_this_bus_has_no_handlers_and_no_workers_of_its_own(self) -> None:
        def nothing(*_: Any) -> None: ...

        with self.assertRaisesMessage(InvalidOperationError, "module `handlers`"):
            bus.register_handler("shop", "Pay", nothing)
        with self.assertRaisesMessage(InvalidOperationError, "module `handlers`"):
            bus.handler("shop", "Pay")
        with self.assertRaisesMessage(InvalidOperationError, "commandbus worker"):
            bus.run_worker("shop")

    def test_an_empty_queue_of_replies_ends(self) -> None:
        self.assertEqual(list(bus.replies("shop", wait=False)), [])

    def test_statements_count_as_queries_and_show_no_payload(self) -> None:
        bus.send("shop", "Pay", new_id(), {})
        with self.assertNumQueries(1) as seen:
            bus.send("shop", "Pay", new_id(), {"number": "canary-4711"})
        self.assertNotIn("canary-4711", str(seen.captured_queries))


class WithoutDatabase(SimpleTestCase):
    def test_a_test_that_may_not_ask_the_database_cannot_send(self) -> None:
        with self.assertRaisesMessage(Exception, "not allowed in SimpleTestCase"):
            bus.send("shop", "Pay", new_id(), {})
