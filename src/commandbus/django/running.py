"""Tasks in a worker: found by their path when one comes, and run with Django's signals."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from django.apps import apps
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from commandbus.django.hygiene import around
from commandbus.django.provider import DjangoTransaction
from commandbus.django.task_api import (
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_started,
)
from commandbus.django.task_ends import End, TellsEnds
from commandbus.django.tasks import CommandBusBackend
from commandbus.errors import HandlerNotFoundError
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
            backend.check_options()
            for domain in backend.domains:
                if domain not in app.finders:  # a path is the same task in each of them
                    app.find_by_name(domain, _finder(backend, domain, alias))


def find_task(path: str, modules: Iterable[str] = ()) -> Any:
    """The task at a path, or None: the name of a command must not reach anything but tasks.

    Nor does it choose what is imported, which runs the code of a module: only installed apps are,
    and `modules`, with what is in them.
    """
    module = path.rpartition(".")[0]
    if module not in sys.modules and not _may_import(module, modules):
        return None
    try:
        found = import_string(path)
    except (ImportError, ValueError):
        return None
    return found if isinstance(found, Task) and found.module_path == path else None


def _may_import(module: str, modules: Iterable[str]) -> bool:
    names = [*modules, *(config.name for config in apps.get_app_configs())]
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _finder(backend: CommandBusBackend, domain: str, alias: str) -> Finder:
    def find(path: str) -> HandlerDraft | None:
        task = find_task(path, backend.modules)
        if task is None:
            raise HandlerNotFoundError(
                f"there is no task {path!r} that this worker may run: a task is in an installed "
                "app, in a module that is imported already, or in one that OPTIONS['modules'] of "
                f"TASKS[{backend.alias!r}] names"
            )
        is_async = iscoroutinefunction(task.func)
        commits = backend.transactional and not is_async
        runner = _Runner(backend, task, alias if commits else None)
        options: HandlerOptions = {
            "retry_policy": backend.policy_of(task), "middleware": (TellsEnds(),),
        }  # fmt: skip
        if commits:
            options["transactional"] = DjangoTransaction(alias)
        handler: Handler = runner.run_async if is_async else runner.run
        if not options.get("transactional"):
            handler = around(handler)
        return HandlerDraft(domain, path, handler, options, path)

    return find


class _Runner:
    """Runs one task: the handler of its type."""

    def __init__(self, backend: CommandBusBackend, task: Any, alias: str | None) -> None:
        self._backend = backend
        self._task = task
        #: Where its transaction is; None: it has none.
        self._alias = alias

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
        end = End(result, type(self._backend))
        if ctx.call is not None:
            ctx.call.state[End] = end
        task_started.send(type(self._backend), task_result=result)
        try:
            yield result
        except Exception as error:
            end.add_error(error)
            if self._is_last(ctx, error):
                # Inside the except: receivers ask for the exception that is being handled.
                end.tell(TaskResultStatus.FAILED)
            raise
        succeeded = partial(end.tell, TaskResultStatus.SUCCESSFUL)
        if self._alias is None:
            succeeded()
        else:  # a commit that fails undoes the task
            transaction.on_commit(succeeded, using=self._alias)

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
