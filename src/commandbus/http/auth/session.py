"""A token that is in the memory of one process only, and ends with it, however it ends."""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import uuid4

from starlette.datastructures import Headers

from commandbus.access.model import Caller, Scope
from commandbus.access.tokens import SECRET_BYTES, Tokens
from commandbus.http.auth.authenticators import bearer_of
from commandbus.http.auth.tokens import TokenAuth


class SessionToken:
    """One live token, written like an API token. It is stored nowhere, and no list shows it."""

    def __init__(
        self,
        user_id: str,
        scopes: Iterable[Scope],
        life: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._user_id = user_id
        self._scopes = frozenset(scopes)
        self.life = life
        self._clock = clock
        self.text = self.renew()

    def renew(self) -> str:
        """Make another one; the one before it ends."""
        token_id = uuid4().hex
        secret = base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).decode().rstrip("=")
        self._ends_at = self._clock() + self.life.total_seconds()
        self._caller = Caller(self._user_id, self._scopes, None, token_id)
        self.text = f"cb_{token_id}_{secret}"
        return self.text

    def caller_by_id(self, token_id: str) -> Caller | None:
        """The caller, if this is its token, and it has not ended."""
        is_live = self._clock() < self._ends_at
        return self._caller if is_live and token_id == self._caller.token_id else None

    @property
    def token_id(self) -> str:
        """Of the token that is good now."""
        return self._caller.token_id or ""

    def caller_of(self, text: str) -> Caller | None:
        """The caller, if it is this token."""
        is_right = hmac.compare_digest(text.encode(), self.text.encode())
        return self._caller if is_right and self._clock() < self._ends_at else None


class SessionAuth(TokenAuth):
    """Accepts one session token, and API tokens."""

    def __init__(
        self, session: SessionToken, tokens: Tokens, *, cache_seconds: float = 5.0
    ) -> None:
        super().__init__(tokens, cache_seconds=cache_seconds)
        self._session = session

    async def authenticate(self, headers: Headers) -> Caller:
        """The caller, or NotAuthenticated."""
        return self._session.caller_of(bearer_of(headers)) or await super().authenticate(headers)

    async def caller_of_token(self, token_id: str, *, fresh: bool = False) -> Caller | None:
        """Who comes with a token whose secret was given before, if it is still good."""
        known = self._session.caller_by_id(token_id)
        return known or await super().caller_of_token(token_id, fresh=fresh)

    async def check_again(self, headers: Headers) -> Caller:
        """The caller of a request that has been waiting, if the token is still good."""
        check = getattr(super(), "check_again", super().authenticate)
        caller: Caller = self._session.caller_of(bearer_of(headers)) or await check(headers)
        return caller
