"""`drain`, `assert_sent` and a real worker, in tests of a project."""

from __future__ import annotations

import asyncio
import os
import time
from unittest import mock

from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection
from django.test import SimpleTestCase, TestCase, override_settings

from commandbus import CommandStatus, new_id
from commandbus.django import bus
from commandbus.django.resetting import refuse_real
from commandbus.django.test import (
    CommandBusTransactionTestCase,
    assert_sent,
    drain,
    run_worker,
    sent,
)
from commandbus.errors import InvalidOperationError
from shop import handlers, tenants
from shop.models import Order


class Draining(TestCase):
    def status(self, command_id: object) -> str:
        found = bus.get_command("shop", command_id)  # type: ignore[arg-type]
        assert found is not None
        return str(found.status)

    def test_a_command_runs_on_the_connection_of_the_test(self) -> None:
        handlers.told.clear()
        command_id = bus.send("shop", "Pay", new_id(), {"number": "1"})
        (done,) = drain()
        self.assertEqual((done.outcome, done.result), ("completed", {"paid": 1}))
        self.assertEqual(self.status(command_id), CommandStatus.COMPLETED)
        self.assertEqual(Order.objects.get().paid, 1)
        self.assertEqual(handlers.told, ["1"])

    def test_time_is_skipped_for_delays_and_for_retries(self) -> None:
        bus.send("shop", "Pay", new_id(), {"number": "1", "fails_at": 2}, delay=3600)
        self.assertEqual([each.outcome for each in drain()], ["retried", "retried", "completed"])
        self.assertEqual(Order.objects.get().paid, 1)

    def test_an_error_of_the_database_leaves_the_transaction_of_the_test_usable(self) -> None:
        command_id = bus.send("shop", "Pay", new_id(), {"number": "1", "breaks": True})
        self.assertEqual([each.outcome for each in drain()], ["retried", "retried", "parked"])
        self.assertEqual(self.status(command_id), CommandStatus.IN_TROUBLESHOOTING_QUEUE)
        self.assertEqual(Order.objects.count(), 0)

    def test_what_a_plain_handler_wrote_stays_though_it_fails(self) -> None:
        bus.send("shop", "Note", new_id(), {"number": "1", "is_wrong": True})
        (done,) = drain("shop")
        self.assertEqual(
            (done.outcome, str(done.error)), ("parked", "WRONG: there is no such note")
        )
        self.assertEqual(Order.objects.count(), 1)

    def test_what_a_handler_sends_is_run_too(self) -> None:
        bus.send("shop", "Forward", new_id(), {"number": "7"})
        self.assertEqual([each.command_type for each in drain()], ["Forward", "Pay"])
        assert_sent("shop", "Pay", {"number": "7"}, times=1)
        self.assertEqual(Order.objects.get().number, "7")

    def test_async_handlers_see_what_the_test_wrote(self) -> None:
        Order.objects.create(number="1")
        bus.send("shop", "Count", new_id(), {})
        (done,) = drain()
        self.assertEqual(done.result, {"orders": 1})

    def test_snoozes_are_skipped_and_endless_ones_are_named(self) -> None:
        bus.send("shop", "Later", new_id(), {"times": 2})
        self.assertEqual([each.outcome for each in drain()], ["snoozed", "snoozed", "completed"])
        bus.send("shop", "Later", new_id(), {"times": 10**9})
        with self.assertRaisesMessage(AssertionError, "Later of shop was run 101 times"):
            drain(timeout=60)

    @override_settings(COMMANDBUS={"MIDDLEWARE": ["shop.tenants.Tenant"]})
    def test_middleware_are_around_handlers_as_in_a_worker(self) -> None:
        tenants.outcomes.clear()
        bus.send("shop", "Whose", new_id(), {"tenant": "red"})
        bus.send("shop", "AsyncWhose", new_id(), {"tenant": "blue"})
        self.assertEqual([each.result for each in drain()], [["red", "red"], "blue"])
        bus.send("shop", "Whose", new_id(), {"is_wrong": True})
        drain()
        self.assertEqual(
            tenants.outcomes,
            ["Whose completed NoneType", "AsyncWhose completed NoneType"]
            + ["Whose retried ValueError"] * 2
            + ["Whose parked ValueError"],
        )

    def test_handlers_get_resources_and_the_hooks_of_their_thread_run(self) -> None:
        handlers.seen.clear()
        bus.send("shop", "Deposit", new_id(), {"number": "1"})
        bus.send("shop", "Visit", new_id(), {})
        bus.send("named", "NamedOne", new_id(), {})
        done = {each.command_type: each for each in drain()}
        self.assertEqual(done["Deposit"].result, {"bank": "Bank", "is_begun": True})
        self.assertEqual(done["Visit"].result, {"visit": "Visit", "bank": "Bank"})
        self.assertEqual(done["NamedOne"].result, "NamedOne")
        # The resource asked the database of the test, and its end left the connection alone.
        self.assertEqual(
            [each for each in handlers.seen if each.startswith("visit")],
            ["visit opens 2", "visit closes"],
        )
        for what in ("bank opens", "bank closes", "thread begins", "thread ends"):
            self.assertEqual(handlers.seen.count(what), 1, what)
        self.assertEqual(Order.objects.count(), 2)

    def test_what_handlers_raise_and_choose_is_as_in_a_worker(self) -> None:
        command_id = bus.send("shop", "Stop", new_id(), {})
        outcomes = [(each.outcome, type(each.error).__name__) for each in drain()]
        self.assertEqual(outcomes[-1], ("parked", "RuntimeError"))
        found = bus.get_command("shop", command_id)
        assert found is not None
        self.assertEqual(found.status, CommandStatus.IN_TROUBLESHOOTING_QUEUE)

    async def test_async_tests_drain_in_the_thread_of_the_database(self) -> None:
        await bus.asend("shop", "Visit", new_id(), {})
        await bus.asend("shop", "Deposit", new_id(), {"number": "1"})
        done = await sync_to_async(drain)()
        self.assertEqual([each.outcome for each in done], ["completed"] * 2)
        self.assertEqual(await Order.objects.acount(), 1)

    def test_a_command_without_a_handler_is_parked(self) -> None:
        bus.send("shop", "Unknown", new_id(), {})
        self.assertEqual([each.outcome for each in drain()], ["parked"])

    def test_one_command_is_drained_in_milliseconds(self) -> None:
        bus.send("shop", "Pay", new_id(), {"number": "0"})
        drain()
        took = []
        for number in range(10):
            bus.send("shop", "Pay", new_id(), {"number": str(number + 1)})
            started = time.monotonic()
            drain("shop")
            took.append(time.monotonic() - started)
        print(f"drain of one command: {sorted(took)[5] * 1000:.1f} ms")
        # The bar is 20 ms on a quiet machine; here neighbours take their share, at each of the
        # steps between the two threads.
        self.assertLess(min(took), 0.5)

    def test_assert_sent_says_what_there_is(self) -> None:
        with self.assertRaisesMessage(AssertionError, "there are: none"):
            assert_sent("shop", "Pay")
        bus.send("shop", "Pay", new_id(), {"number": "1"})
        self.assertEqual(assert_sent("shop", "Pay", {"number": "1"})[0].data, {"number": "1"})
        with self.assertRaisesMessage(AssertionError, "Pay {'number': '1'}"):
            assert_sent("shop", "Pay", {"number": "2"})
        with self.assertRaisesMessage(AssertionError, "not 2"):
            assert_sent("shop", "Pay", times=2)


class RealWorker(CommandBusTransactionTestCase):
    def test_a_real_worker_runs_what_was_committed(self) -> None:
        for number in range(5):
            bus.send("shop", "Pay", new_id(), {"number": str(number)})
        bus.send("shop", "Count", new_id(), {})
        run_worker("shop")
        self.assertEqual({each.status for each in sent("shop")}, {"COMPLETED"})
        self.assertEqual(Order.objects.count(), 5)
        with connection.cursor() as cursor:
            cursor.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and backend_type = 'client backend'"
            )
            (left,) = cursor.fetchone()
        # A pool of Django's keeps its connections, and Django closes it with the database.
        pool = connection.settings_dict["OPTIONS"].get("pool", {"max_size": 1})
        self.assertLess(left, pool["max_size"])

    def test_a_worker_has_the_resources_hooks_and_finders_of_the_apps(self) -> None:
        handlers.seen.clear()
        bus.send("shop", "Deposit", new_id(), {"number": "1"})
        bus.send("shop", "Visit", new_id(), {})
        bus.send("named", "NamedOne", new_id(), {})
        run_worker()
        self.assertEqual([each.status for each in sent("shop")], ["COMPLETED"] * 2)
        self.assertEqual([each.status for each in sent("named")], ["COMPLETED"])
        for what in ("bank opens", "bank closes", "visit closes", "thread begins", "thread ends"):
            self.assertIn(what, handlers.seen)
        self.assertEqual(Order.objects.count(), 2)

    def test_where_another_loop_runs_already_plain_handlers_are_drained(self) -> None:
        async def test() -> list[str]:
            bus.send("shop", "Pay", new_id(), {"number": "1"})
            try:
                return [each.outcome for each in drain("shop")]
            finally:
                connection.close()

        with mock.patch.dict(os.environ, {"DJANGO_ALLOW_ASYNC_UNSAFE": "1"}):
            self.assertEqual(asyncio.run(test()), ["completed"])
        self.assertEqual(Order.objects.get().paid, 1)

    def test_tables_of_the_bus_are_empty_before_each_test(self) -> None:
        self.assertEqual(sent("shop"), [])
        bus.send("shop", "Pay", new_id(), {"number": "1"})

    def test_a_flush_of_django_leaves_the_bus_usable(self) -> None:
        call_command("flush", "--noinput", verbosity=0)
        bus.send("shop", "Pay", new_id(), {"number": "1"})


class Refusing(SimpleTestCase):
    def test_a_database_that_is_none_of_tests_is_not_emptied(self) -> None:
        for name in ("shop", "mytest_shop", "", None):
            with self.assertRaisesMessage(InvalidOperationError, "none that Django made"):
                refuse_real(name, "test_shop")
        refuse_real("test_shop", None)
        refuse_real("test_shop_2", "test_shop")
        refuse_real("special_3", "special")
