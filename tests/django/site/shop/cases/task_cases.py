"""The backend of Django's Tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase
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
from shop import tasks
from shop.models import Order


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
