"""API tokens, without their secrets."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import Field

from commandbus.access.model import ApiToken, Scope
from commandbus.access.tokens import MAX_OVERLAP
from commandbus.http.schemas.base import Form, Reason, Whole, example
from commandbus.http.schemas.views import View, view_of

TokenPath = Annotated[
    str, Path(pattern="^[0-9a-f]{32}$", description="Between `cb_` and the next `_` of a token.")
]


@view_of(ApiToken)
class TokenView(View):
    """A token, without its secret."""

    scopes: list[Scope]
    domains: list[str] | None = Field(description="null: all of them.")


def token_view(token: ApiToken) -> TokenView:
    """What may be shown of a token, in a fixed order."""
    domains = None if token.domains is None else sorted(token.domains)
    return TokenView.of(token, scopes=sorted(token.scopes), domains=domains)


class RevokeToken(Form):
    """Why a token ends."""

    reason: Reason | None = None


class RotateToken(Form):
    """For how long the old secret stays good."""

    model_config = example(overlap_seconds=60)

    overlap_seconds: Whole = Field(
        0, ge=0, le=int(MAX_OVERLAP.total_seconds()),
        description="Seconds in which the old token is still accepted.",
    )  # fmt: skip


class RotatedView(View):
    """The token that took the place of another one. `token` is shown here once."""

    token: str
    details: TokenView
