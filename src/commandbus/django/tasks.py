"""A backend of Django's Tasks: `TASKS = {"default": {"BACKEND": "commandbus.django.tasks.…"}}`.

A task is a command: its type is the path of the function, its id is the id of the result. It is
sent on Django's connection, so a rollback takes it along, and workers run it as any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.checks import CheckMessage, Error

from commandbus.django import bus
from commandbus.django.task_api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from commandbus.django.task_options import read_options
from commandbus.errors import CommandBusError, InvalidNameError, InvalidSettingError
from commandbus.flow import SendOptions
from commandbus.models import AuditEvent, CommandMetadata, CommandStatus
from commandbus.names import INBOX, check_command_type, check_domain, new_id
from commandbus.retry import RetryPolicy, check_max_attempts
from commandbus.wiring import finish

#: Django's priorities are -100 to 100, ours -2 to 2: five bands of equal width.
BAND = 40

_STATUS = {
    CommandStatus.PENDING: TaskResultStatus.READY,
    CommandStatus.IN_PROGRESS: TaskResultStatus.RUNNING,
    CommandStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
    CommandStatus.FAILED: TaskResultStatus.FAILED,
    CommandStatus.CANCELED: TaskResultStatus.FAILED,
    CommandStatus.IN_TROUBLESHOOTING_QUEUE: TaskResultStatus.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandBusTask(Task):
    """A task of this backend. From Django 6.1 on `@task(max_attempts=5)` says how often it runs."""

    max_attempts: int | None = None


class CommandBusBackend(BaseTaskBackend):
    """Runs tasks as commands of the bus."""

    task_class = CommandBusTask
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    supports_defer = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        said, self._mistakes = read_options(self.options)
        self.transactional = said.transactional
        self.modules = said.modules
        self.retry_policy = said.retry_policy
        self._domain = said.domain
        self._bus = bus if said.database is None else bus.using(said.database)

    def domain_of(self, queue: str) -> str:
        """The domain of a queue."""
        if queue == "default":
            return check_domain(self._domain)
        return check_domain(f"{self._domain}_{re.sub(r'[^a-z0-9_]+', '_', queue.lower())}")

    @property
    def domains(self) -> dict[str, str]:
        """The queues of this backend, by their domains."""
        return {self.domain_of(queue): queue for queue in sorted(self.queues)}

    def check(self, **_: Any) -> list[CheckMessage]:
        """What is wrong with the setting."""
        found = self.mistakes
        if not self.queues:
            found.append("has no QUEUES; name them, because a worker must know what to serve")
        if not apps.is_installed("commandbus.django"):
            found.append("needs 'commandbus.django' in INSTALLED_APPS")
        return [Error(f"TASKS[{self.alias!r}] {text}", id="commandbus.E010") for text in found]

    @property
    def mistakes(self) -> list[str]:
        """What stands in the way of every task."""
        found = list(self._mistakes)
        try:
            if len(self.domains) < len(self.queues):
                found.append("has two QUEUES whose names differ in signs only; rename one")
        except InvalidNameError as error:
            found.append(f"has a queue that cannot be a domain: {error}")
        return found

    def check_options(self) -> None:
        """Refuse to work with a setting that is wrong; raises InvalidSettingError."""
        if self._mistakes:
            raise InvalidSettingError(f"TASKS[{self.alias!r}] {self._mistakes[0]}")

    def validate_task(self, task: Any) -> None:
        """Refuse what cannot be sent, where the task is made."""
        super().validate_task(task)
        try:
            check_command_type(task.module_path)
            if (attempts := getattr(task, "max_attempts", None)) is not None:
                check_max_attempts(attempts)
        except CommandBusError as error:
            raise InvalidTask(str(error)) from None

    def policy_of(self, task: Any) -> RetryPolicy | None:
        """How often a task is tried; None: as the bus says."""
        attempts = getattr(task, "max_attempts", None)
        if attempts is None:
            return self.retry_policy
        return replace(self.retry_policy or RetryPolicy(), max_attempts=attempts)

    # -- sending

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Send the task; inside `atomic` it exists if that commits."""
        self.check_options()
        self.validate_task(task)
        result = TaskResult(
            task=task, id=str(new_id()), status=TaskResultStatus.READY, enqueued_at=None,
            started_at=None, last_attempted_at=None, finished_at=None, args=list(args),
            kwargs=dict(kwargs), backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip
        options: SendOptions = {}
        if level := level_of(task.priority):
            options["priority"] = level
        if task.run_after is not None:
            options["deliver_at"] = task.run_after
        policy = self.policy_of(task)
        self._bus.send(
            self.domain_of(task.queue_name), task.module_path, UUID(result.id),
            {"args": result.args, "kwargs": result.kwargs}, INBOX,
            max_attempts=None if policy is None else policy.max_attempts, **options,
        )  # fmt: skip
        object.__setattr__(result, "enqueued_at", _now())
        task_enqueued.send(type(self), task_result=result)
        return result

    # -- results

    def get_result(self, result_id: str) -> Any:
        """What became of a task, from any process."""
        domain, command = self._command(result_id)
        trail = self._bus.get_audit_trail(domain, command.command_id)
        status = _STATUS[CommandStatus(command.status)]
        reply = self._reply(domain, command.command_id)
        payload = reply if "args" in reply else self._payload(domain, command.command_id)
        received = [event for event in trail if event.event_type == "RECEIVED"]
        result = TaskResult(
            task=self._task(command, self.domains[domain]), id=str(command.command_id),
            status=status, enqueued_at=command.created_at,
            started_at=received[0].ts if received else None,
            last_attempted_at=received[-1].ts if received else None,
            finished_at=trail[-1].ts if trail and _is_over(status) else None,
            args=payload.get("args", []), kwargs=payload.get("kwargs", {}), backend=self.alias,
            errors=[_error_of(event) for event in trail if event.event_type == "FAILED"],
            worker_ids=[event.actor or "" for event in received],
        )  # fmt: skip
        if status == TaskResultStatus.SUCCESSFUL:
            # An operator completes a task with whatever he wants to say.
            object.__setattr__(result, "_return_value", reply.get("return_value", reply or None))
        return result

    def _command(self, result_id: str) -> tuple[str, CommandMetadata]:
        try:
            wanted = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        for domain in self.domains:
            if (found := self._bus.get_command(domain, wanted)) is not None:
                return domain, found
        raise TaskResultDoesNotExist(result_id)

    def _task(self, command: CommandMetadata, queue: str) -> Any:
        from commandbus.django.running import find_task

        task = find_task(command.command_type, self.modules)
        if task is None:
            raise TaskResultDoesNotExist(f"there is no task {command.command_type} any more")
        return replace(task, backend=self.alias, queue_name=queue)

    def _payload(self, domain: str, command_id: UUID) -> dict[str, Any]:
        text = finish(self._bus._bridge.open()._store.get_payload(domain, command_id))
        return {} if text is None else dict(json.loads(text))

    def _reply(self, domain: str, command_id: UUID) -> dict[str, Any]:
        """What the task returned, and its arguments; left in the inbox for the next who asks."""
        text = self._bus._bridge.run(
            self._bus._bridge.open()._store.gateway.value(
                "select {schema}.look_at_inbox_reply(%s, %s)", (domain, command_id), domain=domain
            )
        )
        data = None if text is None else json.loads(text).get("data")
        return data if isinstance(data, dict) else {}


def level_of(priority: int) -> int:
    """The level of one of Django's priorities: 60 and more is 2, 20 to 59 is 1, and so on."""
    sign = -1 if priority < 0 else 1
    return sign * min(2, (abs(int(priority)) + BAND // 2) // BAND)


def _is_over(status: Any) -> bool:
    return status in {TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED}


def _error_of(event: AuditEvent) -> Any:
    details: Mapping[str, Any] = event.details or {}
    stack: Mapping[str, Any] = details.get("stack") or {}
    kind = str(stack.get("exception") or "Exception")
    frames = "\n".join(f"  {frame}" for frame in stack.get("frames") or ())
    text = f"{frames}\n{kind}: {details.get('message', '')}".lstrip("\n")
    path = kind if "." in kind else f"builtins.{kind}"
    return TaskError(exception_class_path=path, traceback=text)


def _now() -> datetime:
    from django.utils import timezone

    now: datetime = timezone.now()
    return now
