"""Screen: one place of the console, with its pages, its actions and its entry in the navigation."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from commandbus.access.model import Scope

if TYPE_CHECKING:
    from commandbus.http.console.view import View

#: What a page's function gets (`view`, then parameters of the request) and returns.
Handler = Callable[..., Awaitable[Any]]
#: Whether an action is an administrator's, though its scope is not: asked before it is done.
Proof = Callable[["View"], Awaitable[bool]]
#: The number beside a screen's name in the navigation; None: no number.
Count = Callable[["View"], Awaitable[int | None]]


class Group(StrEnum):
    """The parts of the navigation, in their order."""

    WORK = "Work"
    RUNNING = "Running"
    TRUST = "Trust"


@dataclass(frozen=True, slots=True)
class Page:
    """What a page's function returns: a template, and what it shows."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Of the window, before the name of the console.
    title: str = ""
    status: int = 200
    #: Whether nothing changes any more: the live stream ends after this state.
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page: GET, and the same as a live stream if `live_seconds` is set."""

    name: str
    path: str
    handler: Handler
    scope: Scope
    alternatives: tuple[Scope, ...] = ()
    #: Seconds between two looks of all viewers together; None: the page is not live.
    live_seconds: float | None = None
    #: Whether the page differs between users with the same rights.
    is_personal: bool = False


@dataclass(frozen=True, slots=True)
class ActionRoute:
    """An action: POST of a form. Its function returns a Page, or a Response such as `view.to()`."""

    name: str
    path: str
    handler: Handler
    scope: Scope
    alternatives: tuple[Scope, ...] = ()
    #: Whether the audit gets a line of it: all that changes something but the look of pages.
    is_audited: bool = True
    #: Whether this one needs the token again, beside all that have the scope admin.
    proof: Proof | None = None


@dataclass(slots=True)
class Screen:
    """One place of the console. `screens/<name>.py` has it as `screen`, and is found by itself."""

    name: str
    title: str
    #: In the navigation; 0: it has no entry of its own (one command, for example).
    order: int
    group: Group = Group.WORK
    icon: str = "dot"
    #: What reading it needs; callers without it do not see it in the navigation either.
    scope: Scope = Scope.READ
    alternatives: tuple[Scope, ...] = ()
    count: Count | None = None
    #: Whether that number is the same for all users with the same rights: one query for them all.
    is_count_shared: bool = False
    #: The page that the switch of domains leads to; empty: this is about all of them.
    domain_page: str = ""
    #: The key after `g` that leads here; empty: none.
    shortcut: str = ""
    pages: list[PageRoute] = field(default_factory=list)
    actions: list[ActionRoute] = field(default_factory=list)

    def page(
        self,
        path: str,
        *,
        name: str | None = None,
        scope: Scope | None = None,
        alternatives: tuple[Scope, ...] | None = None,
        live: float | None = None,
        personal: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Add a page under /console. The first page of a screen has the screen's name."""

        def add(handler: Handler) -> Handler:
            found = name or (self.name if not self.pages else f"{self.name}.{_name_of(handler)}")
            others = self.alternatives if alternatives is None else alternatives
            self.pages.append(
                PageRoute(found, path, handler, scope or self.scope, others, live, personal)
            )
            return handler

        return add

    def action(
        self,
        path: str,
        *,
        scope: Scope,
        name: str | None = None,
        alternatives: tuple[Scope, ...] = (),
        audited: bool = True,
        proof: Proof | None = None,
    ) -> Callable[[Handler], Handler]:
        """Add an action under /console: a POST, which needs its form's token. What only
        administrators do is proved with the API token again: all with the scope admin, and
        whatever `proof` says of.
        """

        def add(handler: Handler) -> Handler:
            found = name or f"{self.name}.{_name_of(handler)}"
            self.actions.append(
                ActionRoute(found, path, handler, scope, alternatives, audited, proof)
            )
            return handler

        return add


def _name_of(handler: Handler) -> str:
    return str(getattr(handler, "__name__", "page"))


def signature_of(handler: Handler) -> inspect.Signature:
    """The signature with annotations as values: a wrapper of the function has other globals."""
    hints = typing.get_type_hints(handler, include_extras=True)
    plain = inspect.signature(handler)
    parameters = [
        each.replace(annotation=hints.get(name, each.annotation))
        for name, each in plain.parameters.items()
    ]
    return plain.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
