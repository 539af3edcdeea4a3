"""The backend of Django's Tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, override_settings
from django.utils import timezone

from commandbus import new_id
from commandbus.django import bus
from commandbus.django.running import find_task
from commandbus.django.task_api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from commandbus.django.tasks import CommandBusBackend, level_of
from commandbus.django.test import CommandBusTransactionTestCase, drain, run_worker
from commandbus.errors import TransientCommandError
from shop import tasks
from shop.models import Order

#: Time-outs that a test can wait for.
SHORT = {"handler_timeout_seconds": 0.2, "lease_deadline_seconds": 1.0}


class Backend(TestCase):
    def setUp(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.signals = {
            "enqueued": task_enqueued,
            "started": task_started,
            "finished": task_finished,
        }
        self.receivers = []
        for name, signal in self.signals.items():

            def receive(name: str = name, *, task_result: Any, **_: Any) -> None:
                self.seen.append((name, str(task_result.status)))

            self.receivers.append(receive)
            signal.connect(receive, weak=False)
            self.addCleanup(signal.disconnect, receive)

    def test_a_task_is_a_command_and_has_a_result(self) -> None:
        result = tasks.add.enqueue(1, second=2)
        self.assertEqual(result.status, TaskResultStatus.READY)
        command = bus.get_command("tasks", UUID(result.id))
        assert command is not None
        self.assertEqual(command.command_type, "shop.tasks.add")
        drain()
        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 3))
        again = tasks.add.get_result(result.id)
        self.assertEqual((again.args, again.kwargs, again.return_value), ([1], {"second": 2}, 3))
        self.assertEqual((again.errors, again.attempts), ([], 1))
        assert again.enqueued_at is not None
        self.assertLessEqual(again.enqueued_at, again.finished_at)
        self.assertEqual(
            self.seen,
            [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")],
        )

    def test_a_failed_attempt_is_tried_again_and_only_the_end_is_told(self) -> None:
        result = tasks.attempts.enqueue()
        drain()
        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 2))
        (error,) = result.errors
        self.assertIs(error.exception_class, LookupError)
        self.assertIn("not yet", error.traceback)
        self.assertEqual(result.attempts, 2)
        finished = [status for name, status in self.seen if name == "finished"]
        self.assertEqual(finished, ["SUCCESSFUL"])

    def test_a_task_that_fails_for_good_is_failed_once(self) -> None:
        result = tasks.fails.enqueue()
        drain()
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual([each.exception_class for each in result.errors], [ValueError] * 2)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value
        self.assertEqual(self.seen.count(("finished", "FAILED")), 1)

    def test_async_tasks_and_what_json_cannot_hold(self) -> None:
        good, bad = tasks.aadd.enqueue(1), tasks.returns_rubbish.enqueue()
        drain()
        good.refresh()
        bad.refresh()
        self.assertEqual(good.return_value, 2)
        self.assertEqual(bad.status, TaskResultStatus.FAILED)
        with self.assertRaises(TypeError):
            tasks.add.enqueue(object())

    def test_a_rollback_takes_the_task_along(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            result = tasks.add.enqueue(1)
            raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.add.get_result(result.id)

    def test_a_transactional_backend_undoes_the_rows_of_a_failed_task(self) -> None:
        tasks.writes.enqueue("1")
        tasks.writes.enqueue("2", is_wrong=True)
        drain()
        self.assertEqual([each.number for each in Order.objects.all()], ["1"])

    def test_priority_and_run_after_are_those_of_the_command(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(priority=-100, run_after=later).enqueue(1)
        command = bus.get_command("tasks", UUID(result.id))
        assert command is not None
        self.assertEqual((command.priority, command.deliver_at), (-2, later))
        other = tasks.attempts.enqueue()
        command = bus.get_command("tasks_mail", UUID(other.id))
        assert command is not None
        self.assertEqual(command.priority, 2)

    def test_a_name_that_is_no_task_is_parked_with_what_to_do(self) -> None:
        command_id = bus.send("tasks", "antigravity.fly", new_id(), {"args": [], "kwargs": {}})
        self.assertEqual([each.outcome for each in drain()], ["parked"])
        found = bus.get_command("tasks", command_id)
        assert found is not None
        self.assertEqual(found.last_error_code, "HANDLER_NOT_FOUND")
        self.assertIn("OPTIONS['modules']", str(found.last_error_msg))

    def test_results_of_others_are_not_found(self) -> None:
        for wrong in ("", "1", str(new_id())):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.add.get_result(wrong)

    async def test_the_async_forms(self) -> None:
        result = await tasks.add.aenqueue(1)
        found = await tasks.add.aget_result(result.id)
        self.assertEqual(found.status, TaskResultStatus.READY)

    def test_an_operator_may_complete_a_task(self) -> None:
        result = tasks.fails.enqueue()
        drain()
        command_id = UUID(result.id)
        bus.operator_complete("tasks", command_id, {"by": "hand"}, operator="alice")
        result.refresh()
        self.assertEqual(result.return_value, {"by": "hand"})


class Rules(SimpleTestCase):
    def test_priorities_are_five_bands(self) -> None:
        bands = {-100: -2, -60: -2, -59: -1, -20: -1, -19: 0, 0: 0, 19: 0, 20: 1, 59: 1, 60: 2}
        for priority, level in bands.items():
            self.assertEqual(level_of(priority), level, priority)

    def test_the_name_of_a_command_reaches_tasks_only(self) -> None:
        self.assertIs(find_task("shop.tasks.add"), tasks.add)
        for path in (
            "shop.tasks.no_task",
            "os.system",
            "shop.tasks.nothing",
            "nothing",
            "shop.cases",
        ):
            self.assertIsNone(find_task(path))

    def test_the_name_of_a_command_does_not_choose_what_is_imported(self) -> None:
        for path in ("this.s", "idlelib.idle.main"):
            self.assertIsNone(find_task(path))
            self.assertFalse(path.rpartition(".")[0] in sys.modules, path)
        # Of an installed app a module is imported when its first task comes.
        self.assertFalse("shop.late" in sys.modules)
        self.assertEqual(find_task("shop.late.arrives").func(), "late")
        self.assertIsNone(find_task("shopping.tasks.add"))
        self.assertIsNotNone(find_task("outside.arrives", ["outside"]))

    def test_a_wrong_setting_is_said_by_the_checks(self) -> None:
        params: list[dict[str, Any]] = [
            {"QUEUES": []},
            {"QUEUES": ["a b", "a-b"]},
            {"QUEUES": ["x" * 99]},
            {"OPTIONS": {"retry_policy": 3}},
        ]
        for each in params:
            with self.subTest(each):
                self.assertEqual(len(CommandBusBackend("some", each).check()), 1)
        self.assertEqual(task_backends["default"].check(), [])

    def test_what_cannot_be_sent_is_refused_where_it_is_made(self) -> None:
        def inner() -> None: ...

        with self.assertRaises(InvalidTask):
            task(inner)
        names = ("func", "priority", "backend", "queue_name", "run_after")
        fields = {name: getattr(tasks.add, name) for name in names}  # Django 6.0 wants them all
        with self.assertRaisesMessage(InvalidTask, "max_attempts"):
            CommandBusBackend.task_class(**fields, max_attempts=0)
        own = CommandBusBackend.task_class(**fields, max_attempts=7)
        policy = task_backends["default"].policy_of(own)
        self.assertEqual((policy.max_attempts, policy.backoff_schedule), (7, (60.0,)))


class Ends(CommandBusTransactionTestCase):
    """What a real worker tells at the end of a task."""

    def setUp(self) -> None:
        #: The status, and whether the transaction of the task was open still.
        self.seen: list[tuple[str, bool]] = []
        self.results: list[Any] = []
        task_finished.connect(self.receive)
        self.addCleanup(task_finished.disconnect, self.receive)

    def receive(self, *, task_result: Any, **_: Any) -> None:
        self.results.append(task_result)
        self.seen.append((str(task_result.status), connection.in_atomic_block))

    def test_success_is_told_after_the_commit(self) -> None:
        tasks.writes.enqueue("1")
        run_worker("jobs_together")
        self.assertEqual(self.seen, [("SUCCESSFUL", False)])
        self.assertEqual(Order.objects.count(), 1)

    @override_settings(COMMANDBUS={"SETTINGS": SHORT})
    def test_a_time_out_is_told_once_though_the_task_goes_on(self) -> None:
        tasks.entered.clear()
        tasks.let_go.clear()
        result = tasks.hangs.enqueue()
        waiting = threading.Thread(target=self.let_go_when_told)
        waiting.start()
        run_worker("once")
        waiting.join()
        self.assertEqual([status for status, _ in self.seen], ["FAILED"])
        (error,) = self.results[0].errors
        self.assertIs(error.exception_class, TransientCommandError)
        self.assertIn("ran longer than", error.traceback)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)

    def let_go_when_told(self) -> None:
        tasks.entered.wait(10)
        ends_at = time.monotonic() + 10
        while not self.seen and time.monotonic() < ends_at:
            threading.Event().wait(0.01)
        tasks.let_go.set()

    @override_settings(COMMANDBUS={"SETTINGS": SHORT})
    def test_a_time_out_of_an_async_task_is_told_too(self) -> None:
        tasks.ahangs.enqueue()
        run_worker("once")
        self.wait_for_one()
        self.assertEqual([status for status, _ in self.seen], ["FAILED"])

    def wait_for_one(self) -> None:
        ends_at = time.monotonic() + 10
        while not self.seen and time.monotonic() < ends_at:
            threading.Event().wait(0.01)


class OtherProcess(CommandBusTransactionTestCase):
    def test_a_result_is_read_by_another_process(self) -> None:
        result = tasks.add.enqueue(20, 22)
        run_worker("tasks")
        script = (
            "import django, sys; django.setup()\n"
            "from shop.tasks import add\n"
            "from django.db import connection\n"
            "print(add.get_result(sys.argv[1]).return_value)\n"
            "connection.close()"
        )
        name = json.dumps({"NAME": connection.settings_dict["NAME"]})
        done = subprocess.run(
            [sys.executable, "-c", script, result.id],
            env={**os.environ, "SITE_DATABASE": name, "DJANGO_SETTINGS_MODULE": "config"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual((done.stdout, done.returncode), ("42\n", 0), done.stderr)
