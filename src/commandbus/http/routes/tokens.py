"""API tokens: list them, end them, give them another secret. None is made here: somebody with
access to the database decides who gets in.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from commandbus.access.model import Caller, Scope
from commandbus.access.token_rights import TokensOf
from commandbus.http.auth.scopes import requires
from commandbus.http.platform import Here
from commandbus.http.schemas.base import PageOf50
from commandbus.http.schemas.tokens import (
    RevokeToken,
    RotatedView,
    RotateToken,
    TokenPath,
    TokenView,
    token_view,
)
from commandbus.http.schemas.views import PageView
from commandbus.http.strict import StrictRoute

router = APIRouter(prefix="/tokens", tags=["tokens"], route_class=StrictRoute)

#: Whatever a token is for, its user may look at it and end it.
Anyone = Annotated[Caller, requires(Scope.READ, *(each for each in Scope if each != Scope.READ))]


@router.get("")
async def list_tokens(
    here: Here,
    caller: Anyone,
    paging: PageOf50,
    user_id: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    include_ended: bool = False,
) -> PageView[TokenView]:
    """List your tokens, newest first; an administrator of all domains sees those of everyone."""
    known = TokensOf(here.bus.tokens, caller)
    page = await known.page(user_id=user_id, include_ended=include_ended, **paging)
    return PageView[TokenView].of(page, items=[token_view(each) for each in page.items])


@router.get("/{token_id}")
async def get_token(token_id: TokenPath, here: Here, caller: Anyone) -> TokenView:
    """Show a token, without its secret."""
    return token_view(await TokensOf(here.bus.tokens, caller).require(token_id))


@router.post("/{token_id}/revoke")
async def revoke_token(
    token_id: TokenPath, here: Here, caller: Anyone, form: RevokeToken | None = None
) -> TokenView:
    """End a token: your own, or as an administrator of all domains any. A second one changes
    nothing.
    """
    known = TokensOf(here.bus.tokens, caller)
    await known.revoke(token_id, None if form is None else form.reason)
    here.revocations.tell(token_id)
    return token_view(await known.require(token_id))


@router.post("/{token_id}/rotate")
async def rotate_token(
    token_id: TokenPath, here: Here, caller: Anyone, form: RotateToken | None = None
) -> RotatedView:
    """Give a token of your own another secret, with the same rights and the same end.

    Only the token that the request came with, or one that may do no more. Nobody rotates the token
    of another user: the new secret would let them act as that user.
    """
    overlap = timedelta(seconds=0 if form is None else form.overlap_seconds)
    made = await TokensOf(here.bus.tokens, caller).rotate(token_id, overlap)
    here.revocations.tell(token_id)
    return RotatedView(token=made.text, details=token_view(made.token))
