"""The ends of tasks: Django's signal `task_finished`, once, and when no attempt follows."""

from __future__ import annotations

import logging
import threading
from traceback import format_exception
from typing import Any

from django.db import connections
from django.utils import timezone

from commandbus.django.task_api import TaskError, TaskResultStatus, task_finished
from commandbus.errors import PermanentCommandError, TransientCommandError
from commandbus.middleware.base import Call, CallOutcome, Middleware

_log = logging.getLogger("commandbus.django")


class End:
    """The end of one attempt: the first one tells it."""

    def __init__(self, result: Any, sender: type[Any]) -> None:
        self.result = result
        self._sender = sender
        self._lock = threading.Lock()
        self._is_told = False

    def claim(self) -> bool:
        """Whether nobody has told it, and nobody else will."""
        with self._lock:
            is_first, self._is_told = not self._is_told, True
        return is_first

    def tell(self, status: Any) -> None:
        """Send the signal, unless that is done."""
        if self.claim():
            self.send(status)

    def send(self, status: Any) -> None:
        """Send the signal."""
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())
        task_finished.send(self._sender, task_result=self.result)

    def add_error(self, error: BaseException) -> None:
        """Put an error into the result."""
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        text = "".join(format_exception(error))
        self.result.errors.append(TaskError(exception_class_path=path, traceback=text))


class TellsEnds(Middleware):
    """Tells the ends that the thread of a task does not: above all those by a time-out.

    And from then on the thread, which may go on, tells nothing.
    """

    def on_outcome(self, call: Call, outcome: CallOutcome, error: BaseException | None) -> None:
        """It is decided. On the event loop, where receivers may not ask the database."""
        end = call.state.get(End)
        if end is None or not end.claim() or not (outcome.is_final or outcome.name == "completed"):
            return
        threading.Thread(
            target=_tell, args=(end, outcome, error), name="commandbus-handler-end", daemon=True
        ).start()


def _tell(end: End, outcome: CallOutcome, cause: BaseException | None) -> None:
    try:
        if outcome.is_final:
            _tell_failure(end, outcome, cause)
        else:
            end.send(TaskResultStatus.SUCCESSFUL)
    except Exception:  # noqa: BLE001  (a receiver's; logged as what it is)
        _log.exception("a receiver of task_finished failed; what became of its task is unchanged")
    finally:
        connections.close_all()


def _tell_failure(end: End, outcome: CallOutcome, cause: BaseException | None) -> None:
    kind = PermanentCommandError if outcome.error_type == "PERMANENT" else TransientCommandError
    failure = kind(outcome.error_code or "FAILED", outcome.error_message or "")
    try:
        raise failure from cause
    except kind:
        end.add_error(failure)
        # Inside the except: receivers ask for the exception that is being handled.
        end.send(TaskResultStatus.FAILED)
