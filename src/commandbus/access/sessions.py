"""Sessions of the console: what a browser has in place of a token.

The secret of a session has 256 random bits and is in a cookie only; the database has its HMAC under
a key of the service, so that a writer of the table cannot make a session. The token itself is
not kept: a session knows its id, and is good as long as the token is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID, uuid4

from commandbus.access.model import ApiToken
from commandbus.access.peppers import Peppers
from commandbus.database.store import Store
from commandbus.privacy.redaction import redact_value

#: How long a session may be idle, and how long it may last at all.
IDLE = timedelta(minutes=30)
LONGEST = timedelta(hours=12)
#: How long a code that begins a session is good.
CODE_LIFE = timedelta(minutes=1)
#: Sessions of one user that are listed.
MAX_LISTED = 100

# In the order of ConsoleSession.
_COLUMNS: LiteralString = (
    "s.session_id, s.token_id, s.user_id, s.address, s.agent, s.created_at, s.proved_at,"
    " s.last_seen_at, s.expires_at"
)
_BEGIN: LiteralString = (
    "select {schema}.begin_console_session(%s, %s, %s, %s, cast(%s as interval),"
    " cast(%s as timestamptz), cast(%s as jsonb))"
)
_USE: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + " from {schema}.use_console_session(%s, cast(%s as interval), %s) s"
)
_PROVE: LiteralString = "select {schema}.prove_console_session(%s)"
_END: LiteralString = "select {schema}.end_console_session(%s, %s, %s, cast(%s as jsonb))"
_LIST: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + " from {schema}.command_bus_console_session s where s.user_id = %s and s.ended_at is null"
    " and s.expires_at > now() and s.last_seen_at > now() - cast(%s as interval)"
    " order by s.created_at desc limit %s"
)
_FIND_MANY: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + " from {schema}.command_bus_console_session s where s.session_id = any(%s)"
    " and s.ended_at is null and s.expires_at > clock_timestamp()"
    " and s.last_seen_at > clock_timestamp() - cast(%s as interval)"
)
_NOTE_ACTION: LiteralString = "select {schema}.note_console_action(%s, %s, cast(%s as jsonb))"
_NOTE_REFUSAL: LiteralString = "select {schema}.note_console_refusal(%s, %s, cast(%s as jsonb))"
_NEW_CODE: LiteralString = "select {schema}.create_console_code(%s, %s, cast(%s as interval))"
_USE_CODE: LiteralString = "select {schema}.use_console_code(%s)"


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A session that goes on."""

    session_id: UUID
    token_id: str
    user_id: str
    address: str | None
    agent: str | None
    created_at: datetime
    #: When the token itself was given last.
    proved_at: datetime
    last_seen_at: datetime
    expires_at: datetime

    @property
    def ends_at(self) -> datetime:
        """When it ends if nobody uses it any more."""
        return min(self.expires_at, self.last_seen_at + IDLE)


class ConsoleSessions:
    """`bus.tokens.sessions`: begins, finds, lists and ends sessions; needs PostgreSQL."""

    def __init__(self, store: Store, peppers: Peppers) -> None:
        self._store = store
        self._peppers = peppers

    async def begin(
        self, token_id: str, user_id: str, token_ends: datetime | None, details: Mapping[str, Any]
    ) -> tuple[str, datetime]:
        """Begin a session; the secret for its cookie, and when it ends at the latest."""
        secret = _new_secret()
        ends = await self._store.gateway.value(
            _BEGIN,
            (uuid4(), self._hash(secret), token_id, user_id, LONGEST, token_ends, _json(details)),
        )
        return secret, ends

    async def use(self, secret: str, *, is_used: bool = True) -> ConsoleSession | None:
        """The session of a cookie, if it goes on. `is_used`: it is not idle now."""
        params = (self._hash(secret), IDLE, is_used)
        return await self._store.gateway.row(_USE, params, into=ConsoleSession)

    async def find_many(self, session_ids: Collection[UUID]) -> dict[UUID, ConsoleSession]:
        """Those of these sessions that go on, by id; none of them is used by that."""
        params = (sorted(session_ids), IDLE)
        found = await self._store.gateway.rows(_FIND_MANY, params, into=ConsoleSession)
        return {each.session_id: each for each in found}

    async def prove(self, session_id: UUID) -> None:
        """The token was given again."""
        await self._store.gateway.rows(_PROVE, (session_id,))

    async def end(
        self, session_id: UUID, *, actor: str, owner: str | None, details: Mapping[str, Any]
    ) -> bool:
        """End a session of a user, or of anybody if `owner` is None; whether it did."""
        params = (session_id, owner, actor, _json(details))
        return bool(await self._store.gateway.value(_END, params))

    async def list(self, user_id: str) -> list[ConsoleSession]:
        """The open sessions of a user, the newest first."""
        params = (user_id, IDLE, MAX_LISTED)
        return await self._store.gateway.rows(_LIST, params, into=ConsoleSession)

    async def note(
        self,
        *,
        actor: str | None,
        session: UUID | None,
        details: Mapping[str, Any],
        is_refused: bool = False,
    ) -> None:
        """Write what was done, or refused, into the audit; secrets are masked."""
        statement = _NOTE_REFUSAL if is_refused else _NOTE_ACTION
        await self._store.gateway.rows(statement, (session or uuid4(), actor, _json(details)))

    # -- codes

    async def new_code(self, token: ApiToken | str) -> str:
        """A code that begins one session with this token, within a minute."""
        secret = _new_secret()
        token_id = token if isinstance(token, str) else token.token_id
        await self._store.gateway.rows(_NEW_CODE, (self._hash(secret), token_id, CODE_LIFE))
        return secret

    async def use_code(self, secret: str) -> str | None:
        """Use a code up; the id of its token, None if it is not one, or no more."""
        found: str | None = await self._store.gateway.value(_USE_CODE, (self._hash(secret),))
        return found

    def _hash(self, secret: str) -> bytes:
        key = self._peppers.key_for("console_session")
        return hmac.new(key, secret.encode(errors="replace"), hashlib.sha256).digest()


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


def _json(details: Mapping[str, Any]) -> str:
    return json.dumps(redact_value(dict(details)))
