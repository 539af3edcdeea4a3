"""What a caller may do with API tokens: look at, revoke and rotate its own; administrators of all
domains look at and revoke those of others.

Nobody rotates the token of another user: with the new secret one acts as that user, and could
approve what one has submitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from commandbus.access.model import ApiToken, Caller, NewToken
from commandbus.access.tokens import Tokens
from commandbus.access.visibility import is_token_visible, sees_access
from commandbus.errors import NotOwnerError, TokenNotFoundError
from commandbus.paging import Page


@dataclass(frozen=True, slots=True)
class TokensOf:
    """The tokens that a caller may see, and what it may do with them."""

    tokens: Tokens
    caller: Caller

    async def page(
        self, *, user_id: str | None, include_ended: bool, limit: int, cursor: str | None
    ) -> Page[ApiToken]:
        """Tokens, newest first; only its own, unless the caller sees all."""
        if not sees_access(self.caller):
            if user_id not in {None, self.caller.user_id}:
                return Page([], None)
            user_id = self.caller.user_id
        return await self.tokens.page(
            user_id=user_id, include_ended=include_ended, limit=limit, cursor=cursor
        )

    async def require(self, token_id: str) -> ApiToken:
        """One token; TokenNotFoundError if there is none that the caller may see."""
        stored = await self.tokens.find(token_id)
        if stored is None or not is_token_visible(self.caller, stored.token):
            raise TokenNotFoundError(token_id)
        return stored.token

    async def revoke(self, token_id: str, reason: str | None = None) -> datetime:
        """End a token that the caller may see."""
        token, actor = await self.require(token_id), self.caller.user_id
        return await self.tokens.revoke(token.token_id, reason=reason, actor=actor)

    async def rotate(self, token_id: str, overlap: timedelta) -> NewToken:
        """Give one of the caller's own tokens another secret.

        The one it came with; of its others only those that may do no more than that one.
        """
        token = await self.require(token_id)
        if token.user_id != self.caller.user_id:
            raise NotOwnerError(
                "nobody rotates the token of another user, because its new secret lets one act as "
                "that user; revoke it instead, and make another one for them"
            )
        if token.token_id != self.caller.token_id and not _is_within(token, self.caller):
            raise NotOwnerError(
                "this token may do more than what you came with; come with it to rotate it"
            )
        return await self.tokens.rotate(token.token_id, overlap=overlap, actor=self.caller.user_id)


def _is_within(token: ApiToken, caller: Caller) -> bool:
    reach = caller.domains
    is_near = reach is None or (token.domains is not None and token.domains <= reach)
    return is_near and all(caller.may(scope) for scope in token.scopes)
