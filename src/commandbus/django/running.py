"""Tasks in a worker: found by their path when one comes, and run with Django's signals."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

from commandbus.django.hygiene import around
from commandbus.django.provider import DjangoTransaction
from commandbus.django.task_api import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from commandbus.django.tasks import CommandBusBackend
from commandbus.handler import Handler, HandlerContext, HandlerOptions
from commandbus.handlers.drafts import Finder, HandlerDraft
from commandbus.handlers.router import Handlers
from commandbus.models import Command
from commandbus.outcomes import CHOSEN
from commandbus.retry import RetryPolicy


def include_tasks(app: Handlers, alias: str) -> None:
    """Let these handlers find the tasks of all backends of ours."""
    for name in task_backends:
        backend = task_backends[name]
        if isinstance(backend, CommandBusBackend):
            for domain in backend.domains:
                if domain not in app.finders:  # a path is the same task in each of them
                    app.find_by_name(domain, _finder(backend, domain, alias))


def find_task(path: str) -> Any:
    """The task at a path, or None: the name of a command must not reach anything but tasks."""
    try:
        found = import_string(path)
    except (ImportError, ValueError):
        return None
    return found if isinstance(found, Task) and found.module_path == path else None


def _finder(backend: CommandBusBackend, domain: str, alias: str) -> Finder:
    def find(path: str) -> HandlerDraft | None:
        task = find_task(path)
        if task is None:
            return None
        runner = _Runner(backend, task, backend.domains[domain])
        is_async = iscoroutinefunction(task.func)
        options: HandlerOptions = {"retry_policy": backend.policy_of(task)}
        if backend.transactional and not is_async:
            options["transactional"] = DjangoTransaction(alias)
        handler: Handler = runner.run_async if is_async else runner.run
        if not options.get("transactional"):
            handler = around(handler)
        return HandlerDraft(domain, path, handler, options, path)

    return find


class _Runner:
    """Runs one task: the handler of its type."""

    def __init__(self, backend: CommandBusBackend, task: Any, queue: str) -> None:
        self._backend = backend
        self._task = task
        self._queue = queue

    def run(self, command: Command, ctx: HandlerContext) -> dict[str, Any]:
        """A plain function, in a handler thread."""
        with self._attempt(command, ctx) as result:
            value = self._task.func(*self._arguments(result), **result.kwargs)
            return self._returned(result, value)

    async def run_async(self, command: Command, ctx: HandlerContext) -> dict[str, Any]:
        """A coroutine function, on the event loop."""
        with self._attempt(command, ctx) as result:
            value = await self._task.func(*self._arguments(result), **result.kwargs)
            return self._returned(result, value)

    def _arguments(self, result: Any) -> list[Any]:
        first = [TaskContext(task_result=result)] if self._task.takes_context else []
        return [*first, *result.args]

    @contextmanager
    def _attempt(self, command: Command, ctx: HandlerContext) -> Iterator[Any]:
        now = timezone.now()
        result = TaskResult(
            task=self._task, id=str(command.command_id), status=TaskResultStatus.RUNNING,
            enqueued_at=command.created_at, started_at=now, last_attempted_at=now,
            finished_at=None, args=command.data.get("args", []),
            kwargs=command.data.get("kwargs", {}), backend=self._backend.alias, errors=[],
            # Django counts attempts by the workers.
            worker_ids=[f"{socket.gethostname()}:{os.getpid()}"] * ctx.attempt,
        )  # fmt: skip
        task_started.send(type(self._backend), task_result=result)
        try:
            yield result
        except Exception as error:
            kind = type(error)
            path = f"{kind.__module__}.{kind.__qualname__}"
            text = "".join(format_exception(error))
            result.errors.append(TaskError(exception_class_path=path, traceback=text))
            if self._is_last(ctx, error):
                # Inside the except: receivers ask for the exception that is being handled.
                self._finish(result, TaskResultStatus.FAILED)
            raise
        else:
            self._finish(result, TaskResultStatus.SUCCESSFUL)

    def _is_last(self, ctx: HandlerContext, error: Exception) -> bool:
        """Whether no attempt follows by itself."""
        policy = self._backend.policy_of(self._task) or RetryPolicy()
        if isinstance(error, CHOSEN):
            return False
        return ctx.attempt >= ctx.max_attempts or policy.is_permanent(error)

    def _returned(self, result: Any, value: Any) -> dict[str, Any]:
        found = normalize_json(value)
        object.__setattr__(result, "_return_value", found)
        # With the arguments: the payload of a completed command is not kept.
        return {"return_value": found, "args": result.args, "kwargs": result.kwargs}

    def _finish(self, result: Any, status: Any) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        task_finished.send(type(self._backend), task_result=result)
