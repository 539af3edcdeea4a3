"""View: what a page's function has: the bus, the caller, addresses, rights, and ways to answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote, urlsplit

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from commandbus import __version__
from commandbus.access.callers import demand
from commandbus.access.model import Caller, Scope
from commandbus.access.sessions import ConsoleSession
from commandbus.access.visibility import sees_all, viewer_of
from commandbus.bus import CommandBus
from commandbus.http.auth.scopes import caller_of
from commandbus.http.console import cookies
from commandbus.http.console.forms import CsrfTokens
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.context import info_of
from commandbus.http.platform import Platform, platform_of
from commandbus.models import Viewer

if TYPE_CHECKING:
    from commandbus.http.console.console import Console

#: Below the prefix of the service.
ROOT = "/console"


@dataclass(frozen=True, slots=True)
class View:
    """One request to the console."""

    here: Platform
    console: Console
    request: Request
    caller: Caller
    csrf_tokens: CsrfTokens
    #: Of the current page; empty for what is no page.
    page_name: str = ""
    screen: Screen | None = None
    live_seconds: float | None = None
    #: Whether what is rendered now goes to several users.
    is_shared: bool = False
    #: What the page says once, after an action.
    notice: str = ""
    #: Those that the switch in the head offers.
    domains: tuple[str, ...] = ()
    #: Numbers in the navigation, by the name of the screen.
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def bus(self) -> CommandBus:
        """The bus."""
        return self.here.bus

    @property
    def viewer(self) -> Viewer:
        """Through whose eyes searches and listings look."""
        return viewer_of(self.caller)

    @property
    def request_id(self) -> str:
        """By which the log knows this request."""
        info = info_of(self.request.scope)
        return "" if info is None else info.request_id

    @property
    def session(self) -> ConsoleSession | None:
        """The session; None: the caller came by another way."""
        info = info_of(self.request.scope)
        return None if info is None or self.is_shared else info.session

    @property
    def version(self) -> str:
        """Of this commandbus."""
        return __version__

    @property
    def navigation(self) -> list[tuple[str, list[Screen]]]:
        """The screens that the caller may open, by the parts of the navigation."""
        listed = [each for each in self.console.registry.screens if each.order]
        parts = [
            (group.value, [each for each in listed if each.group is group and self.may_open(each)])
            for group in Group
        ]
        return [(name, screens) for name, screens in parts if screens]

    @property
    def domain(self) -> str:
        """The domain that this address is about; empty: all, or one that is out of reach."""
        path, query = self.request.path_params, self.request.query_params
        found = str(path.get("domain") or query.get("domain") or "")
        return found if found in self.domains else ""

    @property
    def domain_page(self) -> str:
        """Where the switch in the head leads; empty: this page is about all domains."""
        return "" if self.screen is None else self.screen.domain_page

    @property
    def kept(self) -> list[tuple[str, str]]:
        """What stays in the address of this page with another domain."""
        if self.page_name != self.domain_page:
            return []
        query = self.request.query_params.multi_items()
        return [(name, value) for name, value in query if name not in {"domain", "cursor"}]

    @property
    def theme(self) -> str:
        """`light`, `dark` or `auto`."""
        return cookies.theme_of(self.request)

    @property
    def density(self) -> str:
        """`normal` or `compact`."""
        return cookies.density_of(self.request)

    @property
    def address(self) -> str:
        """Path and query of this page, as the browser knows them."""
        query = self.request.url.query
        return quote(self.path) + (f"?{query}" if query else "")

    @property
    def path(self) -> str:
        """The path of this request as the browser knows it, without escapes."""
        path: str = self.request.scope["path"]
        return path if path.startswith(self.here.root) else self.here.root + path

    @property
    def visibility(self) -> tuple[Any, ...]:
        """Callers with the same visibility see the same of a page that is not personal."""
        owner = None if sees_all(self.caller) else self.caller.user_id
        domains = self.caller.domains
        return (
            tuple(sorted(self.caller.scopes)), None if domains is None else tuple(sorted(domains)),
            owner,
        )  # fmt: skip

    @property
    def actor(self) -> str:
        """Who acts, for the audit."""
        return self.caller.user_id

    # -- rights

    def may(self, scope: Scope | str, domain: str | None = None) -> bool:
        """Whether the caller has a scope, in this domain."""
        return self.caller.may(Scope(scope)) and (domain is None or self.caller.reaches(domain))

    def demand(self, scope: Scope, what: str) -> None:
        """PermissionDeniedError, which names the scope, if the caller lacks it."""
        demand(self.caller, scope, what)

    def may_open(self, screen: Screen) -> bool:
        """Whether the caller may open a screen."""
        return any(self.caller.may(each) for each in (screen.scope, *screen.alternatives))

    # -- addresses

    def url(self, page: str, **values: Any) -> str:
        """The address of a page or an action; what its path does not name is its query."""
        return self.here.url(ROOT + self.console.registry.path(page, values))

    def here_with(self, **values: Any) -> str:
        """The address of this page with other values of its query; None takes one away. The
        cursor goes, unless it is given: another filter begins at its first page.
        """
        query: dict[str, Any] = {}
        for key in self.request.query_params:
            query[key] = self.request.query_params.getlist(key)
        query.pop("cursor", None)
        return self.url(self.page_name, **{**self.request.path_params, **query, **values})

    def asset(self, name: str) -> str:
        """The address of a file of the console; its content is in the name."""
        return self.console.asset_url(self.here, name)

    def csrf(self, action: str) -> str:
        """The token of a form that posts to this address."""
        return self.csrf_tokens.of(unquote(urlsplit(action).path))

    @property
    def live_url(self) -> str:
        """The address of this page's stream; empty: it is not live."""
        if self.live_seconds is None:
            return ""
        below = self.console.registry.path(self.page_name, dict(self.request.path_params))
        query = self.request.url.query
        return self.here.url(f"{ROOT}/live{below}") + (f"?{query}" if query else "")

    # -- answers

    def page(
        self,
        template: str,
        title: str = "",
        *,
        status: int = 200,
        final: bool = False,
        **values: Any,
    ) -> Page:
        """A page of a template. `final`: nothing changes any more, so its stream ends."""
        return Page(template, values, title, status, final)

    def to(self, page: str, notice: str = "", **values: Any) -> Response:
        """Lead to a page after an action, which says `notice` once."""
        answer = RedirectResponse(self.url(page, **values), 303)
        if notice:
            cookies.set_notice(answer, self, notice)
        return answer

    def shared(self, *, is_personal: bool) -> View:
        """The same for all who look: with marks in place of the tokens of forms and, unless the
        page is personal, without knowing who asks. Who sees only batches of its own shares with
        nobody else (`visibility`), and stays known: searches look through its eyes.
        """
        is_known = is_personal or not sees_all(self.caller)
        caller = self.caller if is_known else replace(self.caller, user_id="", token_id=None)
        tokens = self.console.placeholders
        return replace(self, caller=caller, csrf_tokens=tokens, is_shared=True, notice="")


def view_of(request: Request) -> View:
    """The view of a request."""
    here = platform_of(request)
    console: Console = request.app.state.commandbus_console
    caller = caller_of(request)
    return View(here, console, request, caller, console.csrf_tokens(request, caller))


#: `view: Show` in the signature of a page's or an action's function.
Show = Annotated[View, Depends(view_of)]
