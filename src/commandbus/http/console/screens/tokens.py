"""Tokens and sessions: who can do what, which are unused or end soon; end them.

None is made here: somebody with access to the database decides who gets in.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.access.token_rights import TokensOf
from commandbus.access.visibility import sees_access
from commandbus.http.console.forms import Fields
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.sign_in import end_session as sign_out_session
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.http.schemas.base import PageOf50
from commandbus.http.schemas.tokens import TokenPath

#: Whatever a token is for, its user may look at it and end it.
ANY = tuple(scope for scope in Scope if scope is not Scope.READ)

screen = Screen("tokens", "Tokens", order=140, group=Group.TRUST, icon="key", alternatives=ANY)


@screen.page("/tokens", personal=True)
async def show(
    view: Show,
    paging: PageOf50,
    user_id: Annotated[str | None, Query(max_length=200)] = None,
    include_ended: bool = False,
) -> Page:
    """Your tokens, or for an administrator everybody's; and your open sessions."""
    known = TokensOf(view.bus.tokens, view.caller)
    found = await known.page(user_id=user_id or None, include_ended=include_ended, **paging)
    return view.page(
        "tokens/index.html",
        "Tokens",
        tokens=found.items,
        sees_all=sees_access(view.caller),
        user_id=user_id or "",
        include_ended=include_ended,
        next=view.here_with(cursor=found.next_cursor) if found.next_cursor else None,
        first=view.here_with() if paging.get("cursor") else None,
        sessions=await view.bus.tokens.sessions.list(view.caller.user_id),
    )


@screen.page("/tokens/{token_id}/revoke", personal=True)
async def ask_revoke(view: Show, token_id: TokenPath) -> Page:
    """The page before a token ends."""
    token = await TokensOf(view.bus.tokens, view.caller).require(token_id)
    used = "it was never used" if token.last_used_at is None else (
        f"it was last used at {token.last_used_at:%Y-%m-%d %H:%M:%S %Z}"
    )  # fmt: skip
    is_this = token.token_id == view.caller.token_id
    return view.page(
        "confirm.html",
        "Revoke a token",
        verb=f"Revoke the token of {token.user_id}",
        action=view.url("tokens.revoke", token_id=token_id),
        back=view.url("tokens"),
        happens=[
            f"Who uses it is refused within 5 seconds; {used}.",
            "Its sessions of the console and its open streams end.",
            *(["You came with this one: you will be signed out."] if is_this else []),
        ],
        stays=["Other tokens of this user stay.", "What was begun with it goes on."],
        cli=f"commandbus token revoke {token_id} --reason '…'",
        curl=curl(view, "POST", f"/api/v1/tokens/{token_id}/revoke", {"reason": "why"}),
    )


async def _is_of_another(view: View) -> bool:
    """Whether the token to revoke is another user's: only administrators see those."""
    token_id = str(view.request.path_params["token_id"])
    token = await TokensOf(view.bus.tokens, view.caller).require(token_id)
    return token.user_id != view.caller.user_id


@screen.action(
    "/tokens/{token_id}/revoke", scope=Scope.READ, alternatives=ANY, proof=_is_of_another
)
async def revoke(view: Show, token_id: TokenPath, form: Fields) -> Response:
    """End a token: one's own, or as an administrator of all domains any."""
    reason = form.required("reason", "Reason")
    await TokensOf(view.bus.tokens, view.caller).revoke(token_id, reason)
    view.here.revocations.tell(token_id)
    return view.to("tokens", "The token is revoked.")


@screen.action("/sessions/end", name="tokens.end_session", scope=Scope.READ, alternatives=ANY)
async def end_session(view: Show, form: Fields) -> Response:
    """End one of one's own sessions."""
    if not await sign_out_session(view, UUID(form.required("session_id"))):
        raise not_found("no such session goes on")
    return view.to("tokens", "The session is ended.")
