"""The verbs of a bus for handlers and the workers that run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from commandbus.errors import InvalidOperationError, InvalidSettingError
from commandbus.flow_verbs import FlowVerbs
from commandbus.handler import Handler, HandlerOptions
from commandbus.handlers.router import Handlers
from commandbus.middleware.base import Middleware
from commandbus.names import check_domain
from commandbus.retry import RetryPolicy
from commandbus.settings import check_worker_settings
from commandbus.transactions.provider import TransactionProvider

AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Any])


class HandlerVerbs(FlowVerbs):
    """Register, include, run."""

    def register_handler(
        self,
        domain: str,
        command_type: str,
        handler: Handler,
        *,
        retry_policy: RetryPolicy | None = None,
        transactional: bool | TransactionProvider = False,
        payload_type: type | None = None,
        timeout_seconds: float | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """Register a handler for a command type.

        `async def` handlers run on the event loop, `def` handlers in threads. Without a
        `retry_policy` that of the bus holds. With `transactional` what the handler writes on
        `ctx.conn` and the completion are one commit: True for a connection of ours, or a provider
        of the application's own. `payload_type` (a dataclass, a TypedDict or a pydantic model)
        says which fields are secret, and what an edited payload must look like. A handler that
        runs longer than `timeout_seconds` has failed, with HANDLER_TIMEOUT.
        `middleware` is around this handler, inside that of the bus, the first one outermost.
        """
        self._registry.register(
            domain, command_type, handler, retry_policy=retry_policy, transactional=transactional,
            payload_type=payload_type, timeout_seconds=timeout_seconds, middleware=middleware,
        )  # fmt: skip

    def handler(
        self, domain: str, command_type: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Register the decorated function; `options` are those of `register_handler`."""

        def decorate(function: AnyHandler) -> AnyHandler:
            self.register_handler(domain, command_type, function, **options)
            return function

        return decorate

    def include(self, *handlers: Handlers) -> None:
        """Take the handlers of modules, all or none; what is added to them later has no effect."""
        if "_workers" in vars(self) and self._workers.running:
            raise InvalidOperationError(
                "handlers were included while a worker of this bus runs, which would miss them; "
                "include them before, or stop the workers first"
            )
        gathered = Handlers()
        gathered.include(*handlers)
        self._registry.include(gathered.drafts, gathered.resources)
        self._registry.thread_hooks = self._registry.thread_hooks.joined(gathered.thread_hooks)
        self._registry.find_by_name(gathered.finders)
        if gathered.around_sends:
            self._send_inside(gathered.around_sends)

    @property
    def domains(self) -> list[str]:
        """The domains that have handlers."""
        return self._registry.domains()

    async def run_worker(
        self,
        domain: str,
        *,
        concurrency: int = 10,
        vt_seconds: int = 30,
        use_notify: bool = True,
        until_empty: bool = False,
        include_delayed: bool = False,
    ) -> None:
        """Process the commands of a domain until `stop` is called.

        With `until_empty` until nothing is due and nothing runs here, with `include_delayed` until
        nothing is delayed or backs off either. Such workers of one bus end together. What other
        workers have leased is not waited for. A paused domain raises DomainPausedError.
        """
        from commandbus.worker.options import WorkerOptions

        check_domain(domain)
        check_worker_settings(concurrency, vt_seconds)
        if include_delayed and not until_empty:
            raise InvalidSettingError("include_delayed goes with until_empty=True")
        await self._workers.run(
            WorkerOptions(domain, concurrency, vt_seconds, use_notify, until_empty, include_delayed)
        )
