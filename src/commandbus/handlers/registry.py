"""The registry: the handlers of one bus, found by domain and command type."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

from commandbus.errors import (
    HandlerNotFoundError,
    InvalidSettingError,
)
from commandbus.handler import Handler, HandlerEntry, HandlerOptions
from commandbus.handlers.binding import bind
from commandbus.handlers.drafts import Finder, HandlerDraft, already_registered, name_of, place_of
from commandbus.handlers.resources import Graph, Resource
from commandbus.handlers.signatures import local_names
from commandbus.handlers.threads import ThreadHooks
from commandbus.middleware.base import Middleware
from commandbus.middleware.chain import check_middleware, layers_of
from commandbus.names import check_command_type, check_domain
from commandbus.privacy.secrets import secret_keys
from commandbus.retry import RetryPolicy
from commandbus.transactions.provider import TransactionProvider, committing, transaction_of
from commandbus.typed.codec import Codec


class HandlerRegistry:
    """Handlers by (domain, command type). All time-outs must be below `deadline_seconds`."""

    def __init__(
        self, deadline_seconds: float = math.inf, middleware: Sequence[Middleware] = ()
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._middleware = tuple(middleware)
        self._entries: dict[tuple[str, str], HandlerEntry] = {}
        #: How payloads are checked when they are sent, by domain and command type. Empty, if no
        #: handler has a type, so that those who send need not look.
        self.codecs: dict[tuple[str, str], Codec] = {}
        #: What handlers may ask for by type.
        self._resources: dict[Callable[..., Any], Resource] = {}
        self._finders: dict[str, Finder] = {}
        #: What is called where handler threads begin and end.
        self.thread_hooks = ThreadHooks()

    def register(
        self, domain: str, command_type: str, handler: Handler, **options: Unpack[HandlerOptions]
    ) -> None:
        """Add a handler; a second one for the same type is an error."""
        place, names = place_of(handler), local_names(handler)
        self.include([HandlerDraft(domain, command_type, handler, options, place, names=names)])

    def find_by_name(self, finders: Mapping[str, Finder]) -> None:
        """Ask these, by domain, for types that nobody has registered."""
        for domain in finders:
            if domain in self._finders:
                raise InvalidSettingError(f"the domain {domain!r} has a finder of handlers already")
        self._finders.update(finders)

    def include(self, drafts: Iterable[HandlerDraft], resources: Iterable[Resource] = ()) -> None:
        """Add handlers: all of them, or, on any error, none."""
        added: dict[tuple[str, str], HandlerEntry] = {}
        for draft in drafts:
            key = (draft.domain, draft.command_type)
            earlier = self._entries.get(key) or added.get(key)
            if earlier is not None:
                raise already_registered(draft, earlier.place)
            added[key] = self._entry(draft)
        self._entries |= added
        self.codecs |= {key: entry.codec for key, entry in added.items() if entry.codec is not None}
        self._resources |= {resource.factory: resource for resource in resources}

    def _entry(self, draft: HandlerDraft) -> HandlerEntry:
        domain, command_type, handler = draft.domain, draft.command_type, draft.handler
        options, name = draft.options, f"{domain}/{command_type}"
        retry_policy = options.get("retry_policy")
        is_transactional, provider = transaction_of(options.get("transactional", False), name)
        check_domain(domain)
        check_command_type(command_type)
        _check_call(handler, name)
        timeout_seconds = options.get("timeout_seconds")
        if timeout_seconds is not None:
            self._check_timeout(timeout_seconds, name)
        if retry_policy is not None and not isinstance(retry_policy, RetryPolicy):
            raise InvalidSettingError(
                f"retry_policy of {name} is {retry_policy!r}; use RetryPolicy(…)"
            )
        is_async = _is_async(handler)
        # A plain function may be the wrapper of a decorator, and return a coroutine.
        commits_in_thread = is_transactional and not (
            is_async or _is_async(inspect.unwrap(handler))
        )
        bound = bind(
            handler, name, payload_type=options.get("payload_type"), is_async=is_async,
            names=draft.names,
        )  # fmt: skip
        payload_type, called = bound.payload_type, bound.call
        keys = frozenset[str]() if payload_type is None else secret_keys(payload_type)
        around = (*self._middleware, *check_middleware(options.get("middleware", ()), name))
        layers = layers_of(around, called, is_async=is_async, is_transactional=is_transactional)
        if commits_in_thread:
            if layers is not None:
                called, layers = layers.moved_into(called)
            called = committing(called)
        return HandlerEntry(
            domain, command_type, called, retry_policy, is_transactional, is_async, payload_type,
            keys, timeout_seconds, around, draft.place, bound.codec, bound.needs, provider,
            commits_in_thread, layers,
        )  # fmt: skip

    def resources_for(self, domain: str) -> Graph | None:
        """What the handlers of a domain need, checked; None: nothing."""
        needy = [entry for entry in self.of_domain(domain) if entry.needs]
        if not needy:
            return None
        graph = Graph(self._resources.values())
        for entry in needy:
            graph.add(entry)
        return graph

    def _check_timeout(self, seconds: float, name: str) -> None:
        if type(seconds) not in {int, float} or not 0 < seconds < self._deadline_seconds:
            limit = f" and below lease_deadline_seconds, {self._deadline_seconds:g}"
            raise InvalidSettingError(
                f"timeout_seconds of {name} is {seconds!r}; use a number of seconds above 0"
                + limit * math.isfinite(self._deadline_seconds)
            )

    def find(self, domain: str, command_type: str) -> HandlerEntry | None:
        """A handler, or None."""
        found = self._entries.get((domain, command_type))
        if found is None and domain in self._finders:
            with suppress(HandlerNotFoundError):
                return self._found_by_name(domain, command_type)
        return found

    def _found_by_name(self, domain: str, command_type: str) -> HandlerEntry | None:
        draft = self._finders[domain](command_type)
        if draft is None:
            return None
        key = (domain, command_type)
        # Threads may ask for the same at once; the first one has it.
        entry = self._entries.setdefault(key, self._entry(draft))
        if entry.codec is not None:
            self.codecs[key] = entry.codec
        return entry

    def secret_keys(self, domain: str) -> dict[str, frozenset[str]]:
        """The secret keys of payloads, by command type; only types that have some."""
        return {
            entry.command_type: entry.secret_keys
            for entry in self.of_domain(domain)
            if entry.secret_keys
        }

    def marked(self, domain: str, command_type: str) -> frozenset[str]:
        """The secret keys of one command type; none if it has no handler here."""
        found = self.find(domain, command_type)
        return frozenset() if found is None else found.secret_keys

    def get(self, domain: str, command_type: str) -> HandlerEntry:
        """Find a handler, or raise HandlerNotFoundError; a finder may say more in its own."""
        found = self._entries.get((domain, command_type))
        if found is None and domain in self._finders:
            found = self._found_by_name(domain, command_type)
        if found is None:
            raise HandlerNotFoundError(
                f"no handler for {domain}/{command_type}; register one and retry the command"
            )
        return found

    def of_domain(self, domain: str) -> list[HandlerEntry]:
        """All handlers of a domain."""
        return [entry for entry in self._entries.values() if entry.domain == domain]

    def providers(self) -> list[TransactionProvider]:
        """Where the transactions of handlers come from, each once."""
        found = (entry.provider for entry in self._entries.values())
        return list({id(each): each for each in found if each is not None}.values())

    def domains(self) -> list[str]:
        """The domains that have handlers, sorted."""
        return sorted({entry.domain for entry in self._entries.values()} | set(self._finders))

    def limits(self, domain: str) -> dict[str, int]:
        """max_attempts by command type, where the handler has its own retry policy."""
        return {
            entry.command_type: entry.retry_policy.max_attempts
            for entry in self.of_domain(domain)
            if entry.retry_policy is not None
        }

    def count_every(self, domain: str, default_policy: RetryPolicy) -> list[str]:
        """The command types whose retry policy counts every lapsed lease as an attempt."""
        return [
            entry.command_type
            for entry in self.of_domain(domain)
            if (entry.retry_policy or default_policy).count_lapses == "every"
        ]


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  (an object with an async __call__)
    )


def _check_call(handler: Handler, name: str) -> None:
    """Refuse what cannot be called, or would not run when it is."""
    if not callable(handler):
        raise InvalidSettingError(f"the handler of {name} is not callable")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidSettingError(
            f"the handler of {name}, {name_of(handler)}, is a generator; it must return, not yield"
        )
