"""Handlers: what modules fill with decorators, and what a bus includes. Data only: opens nothing.

handlers = Handlers("payments")

@handlers.handle("DebitAccount")
async def debit(command: Command, ctx: HandlerContext) -> None: ...

app = Handlers()
app.include(handlers, mail.handlers)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from commandbus.errors import InvalidSettingError
from commandbus.handler import Handler, HandlerOptions
from commandbus.handlers.drafts import Finder, HandlerDraft, already_registered, place_of
from commandbus.handlers.methods import marked_methods
from commandbus.handlers.resources import Resource, Scope, resource_of
from commandbus.handlers.signatures import local_names
from commandbus.handlers.threads import Hook, ThreadHooks
from commandbus.middleware.base import Middleware
from commandbus.names import check_command_type, check_domain
from commandbus.retry import RetryPolicy
from commandbus.typed.commands import TypedCommand, name_of_class

AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Any])
Factory = TypeVar("Factory", bound=Callable[..., Any])
AnyHook = TypeVar("AnyHook", bound=Hook)


class Handlers:
    """The handlers of a module. Without a domain it only gathers those of others.

    `retry_policy` is for handlers that have none of their own; `middleware` is around all of them,
    the first one outermost.
    """

    def __init__(
        self,
        domain: str | None = None,
        *,
        retry_policy: RetryPolicy | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        if retry_policy is not None and not isinstance(retry_policy, RetryPolicy):
            raise InvalidSettingError(
                f"retry_policy of Handlers is {retry_policy!r}; use RetryPolicy(…)"
            )
        self._domain = None if domain is None else check_domain(domain)
        self._retry_policy = retry_policy
        self._middleware = tuple(middleware)
        self._drafts: dict[tuple[str, str], HandlerDraft] = {}
        self._resources: dict[Callable[..., Any], Resource] = {}
        self._finders: dict[str, Finder] = {}
        self._thread_hooks = ThreadHooks()
        #: Around all sends of a bus that includes these, too: of one that others configure.
        self.around_sends: tuple[Middleware, ...] = ()

    def handle(
        self, command_type: str | type[TypedCommand], **options: Unpack[HandlerOptions]
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Take the decorated function; `options` are those of `CommandBus.register_handler`.

        A class with `@command` stands for its command type, and is the type of the payload.
        """
        domain = self._own_domain()
        name, options = _named(domain, command_type, options)

        def decorate(function: AnyHandler) -> AnyHandler:
            self._take([self._draft(domain, name, options, function)])
            return function

        return decorate

    def add(self, instance: object) -> None:
        """Take the methods of an object that are marked with `@handles(…)`."""
        domain = self._own_domain()
        self._take(
            self._draft(domain, *_named(domain, command_type, options), method)
            for command_type, options, method in marked_methods(instance)
        )

    @overload
    def resource(self, factory: Factory, /) -> Factory: ...
    @overload
    def resource(self, *, scope: Scope = "worker") -> Callable[[Factory], Factory]: ...
    def resource(self, factory: Any = None, *, scope: Scope = "worker") -> Any:
        """Take a function, or a generator, that makes something which handlers ask for by type.

        One of scope `worker` is opened before the worker takes commands and closed after its last
        handler; one of scope `command` lives while one command is handled.
        """

        def decorate(function: Factory) -> Factory:
            found = resource_of(function, scope)
            self._resources[found.factory] = found
            return function

        return decorate if factory is None else decorate(factory)

    def on_thread_start(self, hook: AnyHook) -> AnyHook:
        """Call the decorated function in each handler thread, before its first handler.

        `def` handlers run in threads that last as long as their worker. An error is logged.
        """
        self._thread_hooks = self._thread_hooks.with_start(hook)
        return hook

    def on_thread_end(self, hook: AnyHook) -> AnyHook:
        """Call the decorated function in each handler thread, after its last handler."""
        self._thread_hooks = self._thread_hooks.with_end(hook)
        return hook

    @property
    def thread_hooks(self) -> ThreadHooks:
        """What is called where handler threads begin and end."""
        return self._thread_hooks

    def _draft(
        self, domain: str, command_type: str, options: HandlerOptions, handler: Handler
    ) -> HandlerDraft:
        draft = HandlerDraft(
            domain, command_type, handler, options, place_of(handler), local_names(handler)
        )
        return draft.inside(self._retry_policy, self._middleware)

    def find_by_name(self, domain: str, finder: Finder) -> None:
        """Ask `finder` for the handlers of types that nobody has named when a command comes.

        For frameworks whose functions are known by their own names. It is asked once for each
        type that it knows.
        """
        if domain in self._finders:
            raise InvalidSettingError(f"the domain {domain!r} has a finder of handlers already")
        self._finders[check_domain(domain)] = partial(
            _found, finder, lambda draft: draft.inside(self._retry_policy, self._middleware)
        )

    @property
    def finders(self) -> dict[str, Finder]:
        """What finds handlers by the names of their types, by domain."""
        return dict(self._finders)

    def _own_domain(self) -> str:
        if self._domain is None:
            raise InvalidSettingError(
                "these Handlers have no domain, so that they only gather those of others; "
                'write Handlers("payments") for handlers of their own'
            )
        return self._domain

    def include(self, *others: Handlers) -> None:
        """Take what others have now; what is added to them later has no effect here."""
        for other in others:
            if not isinstance(other, Handlers):
                raise InvalidSettingError(f"include takes Handlers, not {type(other).__name__}")
        self._take(
            draft.inside(self._retry_policy, self._middleware)
            for other in others
            for draft in other.drafts
        )
        for other in others:
            self._resources |= other._resources
            self.around_sends += other.around_sends
            self._thread_hooks = self._thread_hooks.joined(other.thread_hooks)
            for domain, finder in other.finders.items():
                self.find_by_name(domain, finder)

    def _changed(self, change: Callable[[HandlerDraft], HandlerDraft]) -> Handlers:
        """The same with each handler changed, those that are found by name too."""
        copy = Handlers()
        copy.include(self)
        copy._drafts = {key: change(draft) for key, draft in copy._drafts.items()}
        copy._finders = {
            domain: partial(_found, finder, change) for domain, finder in copy._finders.items()
        }
        return copy

    @property
    def drafts(self) -> tuple[HandlerDraft, ...]:
        """What was taken, each with the middleware around it and its retry policy."""
        return tuple(self._drafts.values())

    @property
    def resources(self) -> tuple[Resource, ...]:
        """What handlers may ask for by type."""
        return tuple(self._resources.values())

    @property
    def domains(self) -> list[str]:
        """The domains that have handlers, sorted."""
        return sorted({draft.domain for draft in self._drafts.values()} | set(self._finders))

    def _take(self, drafts: Iterable[HandlerDraft]) -> None:
        """All of them, or, if one is there twice, none."""
        taken = dict(self._drafts)
        for draft in drafts:
            key = (draft.domain, draft.command_type)
            if key in taken:
                raise already_registered(draft, taken[key].place)
            taken[key] = draft
        self._drafts = taken

    def __repr__(self) -> str:
        where = "" if self._domain is None else repr(self._domain)
        return f"Handlers({where}) of {len(self._drafts)} command types"


def _named(
    domain: str, command_type: str | type[TypedCommand], options: HandlerOptions
) -> tuple[str, HandlerOptions]:
    """The command type, and the options, of a handler whose type is a text or a class."""
    if not isinstance(command_type, type):
        return check_command_type(command_type), options
    name = name_of_class(command_type)
    if name.domain != domain:
        raise InvalidSettingError(
            f"{command_type.__qualname__} is a command of the domain {name.domain!r}, and these "
            f"are Handlers({domain!r})"
        )
    if options.get("payload_type") not in {None, command_type}:
        raise InvalidSettingError(
            f"{command_type.__qualname__} is the type of its payload; leave payload_type out"
        )
    return name.command_type, {**options, "payload_type": command_type}


def _found(
    finder: Finder, change: Callable[[HandlerDraft], HandlerDraft], name: str
) -> HandlerDraft | None:
    found = finder(name)
    return None if found is None else change(found)


def origin_of(finder: Finder) -> Finder:
    """The finder as it was given, before others included it."""
    while isinstance(finder, partial) and finder.func is _found:
        finder = finder.args[0]
    return finder
