"""API tokens on PostgreSQL; part of PostgresStore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import datetime

from commandbus.database.connections import Row
from commandbus.governance.model import ApiToken, Scope
from commandbus.store.tokens import StoredToken


class PostgresTokens(ABC):
    """Implements commandbus.store.tokens.TokenStore."""

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    async def create_token(
        self, token: ApiToken, secret_hash: bytes, *, actor: str | None
    ) -> ApiToken:
        domains = None if token.domains is None else sorted(token.domains)
        rows = await self._call(
            "create_token",
            (
                token.token_id, token.user_id, sorted(token.scopes), domains, token.label,
                secret_hash, token.expires_at, actor,
            ),
        )  # fmt: skip
        return replace(token, created_at=rows[0][0])

    async def find_token(self, token_id: str) -> StoredToken | None:
        rows = await self._call("find_token", (token_id,))
        return StoredToken(_token_of(rows[0]), bytes(rows[0][-1])) if rows else None

    async def list_tokens(
        self, *, user_id: str | None, include_ended: bool, limit: int
    ) -> list[ApiToken]:
        rows = await self._call("list_tokens", (user_id, user_id, include_ended, limit))
        return [_token_of(row) for row in rows]

    async def revoke_token(self, token_id: str, *, actor: str | None) -> datetime | None:
        rows = await self._call("revoke_token", (token_id, actor))
        revoked_at: datetime | None = rows[0][0]
        return revoked_at

    async def touch_token(self, token_id: str) -> None:
        await self._call("touch_token", (token_id,))


def _token_of(row: Row) -> ApiToken:
    return ApiToken(
        token_id=row[0],
        user_id=row[1],
        scopes=frozenset(Scope(name) for name in row[2]),
        domains=None if row[3] is None else frozenset(row[3]),
        label=row[4],
        created_at=row[5],
        expires_at=row[6],
        revoked_at=row[7],
        last_used_at=row[8],
    )
