"""What API tokens ask of a store. The in-memory store does not implement it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from commandbus.governance.model import ApiToken


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token with the HMAC of its secret."""

    token: ApiToken
    secret_hash: bytes = field(repr=False)


@runtime_checkable
class TokenStore(Protocol):
    """The verbs of API tokens."""

    async def create_token(
        self, token: ApiToken, secret_hash: bytes, *, actor: str | None
    ) -> ApiToken:
        """Store a new token; returns it with the time of its creation."""

    async def find_token(self, token_id: str) -> StoredToken | None:
        """One token, also one that has ended, or None."""

    async def list_tokens(
        self, *, user_id: str | None, include_ended: bool, limit: int
    ) -> list[ApiToken]:
        """Tokens, newest first."""

    async def revoke_token(self, token_id: str, *, actor: str | None) -> datetime | None:
        """End a token; returns when it was ended, None if there is no such token."""

    async def touch_token(self, token_id: str) -> None:
        """Note that it is in use, once a minute at most."""
