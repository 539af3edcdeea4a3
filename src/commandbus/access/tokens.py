"""API tokens: made, listed, rotated, revoked, and proved.

A token is `cb_<id>_<secret>`. The secret has 256 random bits and is shown once; what is stored is
its HMAC-SHA-256 under a pepper (`peppers.py`). A fast hash is enough for a random secret.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID, uuid4

from commandbus.access.model import ApiToken, NewToken, Scope, StoredToken
from commandbus.access.peppers import HASH_BYTES, Peppers
from commandbus.access.sessions import ConsoleSessions
from commandbus.access.users import check_new_user
from commandbus.access.weaknesses import TOKENS_IN_USE, token_findings
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidOperationError, InvalidSettingError
from commandbus.names import check_domain, check_operator, check_text
from commandbus.paging import Page, check_page, page_of, position_of, read_moment
from commandbus.privacy.reasons import check_reason
from commandbus.privacy.redaction import redact_text

if TYPE_CHECKING:
    from commandbus.upkeep.findings import Finding

SECRET_BYTES = 32
#: Longest life that can be asked for.
MAX_LIFE = timedelta(days=3_650)
#: Longest time for which the old secret of a rotated token may stay good.
MAX_OVERLAP = timedelta(days=1)

_TOKEN = re.compile(r"cb_([0-9a-f]{32})_([A-Za-z0-9_-]{43})\Z")
_ID = re.compile(r"[0-9a-f]{32}\Z")
_SCOPES = frozenset(Scope)
# Compared with when there is no such token, so that an unknown id takes as long as a wrong secret.
_NOTHING = bytes(32)

# In the order of ApiToken.
_COLUMNS: LiteralString = (
    "t.token_id, t.user_id, t.scopes, t.domains, t.label, t.created_at, t.expires_at,"
    " t.revoked_at, t.last_used_at"
)
_CREATE: LiteralString = (
    "select {schema}.create_api_token(%s, %s, cast(%s as text[]), cast(%s as text[]), %s, %s,"
    " cast(%s as timestamptz), %s)"
)
_ROTATE: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + " from {schema}.rotate_api_token(%s, %s, %s, cast(%s as interval), %s) t"
)
_REVOKE: LiteralString = "select {schema}.revoke_api_token(%s, %s, %s)"
_TOUCH: LiteralString = "select {schema}.touch_api_token(%s)"
_FIND: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + ", t.secret_hash from {schema}.command_bus_api_token t where t.token_id = %s"
)
_FIND_MANY: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + ", t.secret_hash from {schema}.command_bus_api_token t where t.token_id = any(%s)"
)
_PAGE: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + " from {schema}.command_bus_api_token t where (cast(%s as text) is null or t.user_id = %s)"
    " and (%s or t.revoked_at is null and (t.expires_at is null or t.expires_at > now()))"
    " and (cast(%s as timestamptz) is null or (t.created_at, t.token_id) < (%s, %s))"
    " order by t.created_at desc, t.token_id desc limit %s"
)


class Tokens:
    """`bus.tokens`: makes and proves API tokens; needs PostgreSQL."""

    def __init__(self, store: Store, peppers: Peppers) -> None:
        self._store = store
        self._peppers = peppers
        #: What browsers have in place of a token.
        self.sessions = ConsoleSessions(store, peppers)

    async def create(
        self,
        user_id: str,
        scopes: Iterable[str],
        *,
        domains: Iterable[str] | None = None,
        label: str | None = None,
        expires_in: timedelta | None = None,
        actor: str | None = None,
    ) -> NewToken:
        """Make a token; `domains=None`: for all of them, `expires_in=None`: until it is revoked."""
        now = datetime.now(UTC)
        if expires_in is not None and not timedelta(0) < expires_in <= MAX_LIFE:
            raise InvalidInputError("a token lives for more than 0 seconds and at most 3,650 days")
        token = ApiToken(
            token_id=uuid4().hex,
            user_id=check_new_user(user_id),
            scopes=_check_scopes(scopes),
            domains=_check_domains(domains),
            label=None if label is None else redact_text(check_text(label, "label"), 200),
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
            revoked_at=None,
            last_used_at=None,
        )
        await self._refuse_other_pepper()
        secret = _new_secret()
        created_at = await self._store.gateway.value(
            _CREATE,
            (
                token.token_id, token.user_id, sorted(token.scopes),
                None if token.domains is None else sorted(token.domains), token.label,
                self._hash(secret), token.expires_at, check_operator(actor),
            ),
        )  # fmt: skip
        return NewToken(replace(token, created_at=created_at), f"cb_{token.token_id}_{secret}")

    async def rotate(
        self, token_id: str, *, overlap: timedelta = timedelta(0), actor: str | None = None
    ) -> NewToken:
        """Make a token with the same user, rights and end in place of this one.

        The old one ends at once, or `overlap` later, so that its users can be told. A token can be
        rotated once; then the new one can be.
        """
        if not timedelta(0) <= overlap <= MAX_OVERLAP:
            raise InvalidInputError("the old token stays good for 0 seconds to 1 day")
        await self._refuse_other_pepper()
        secret, new_id = _new_secret(), uuid4().hex
        params = (
            _check_id(token_id), new_id, self._hash(secret), overlap, check_operator(actor),
        )  # fmt: skip
        made = await self._store.gateway.row(_ROTATE, params, into=_token_of)
        if made is None:
            raise _no_such(token_id)
        return NewToken(made, f"cb_{new_id}_{secret}")

    async def page(
        self,
        *,
        user_id: str | None = None,
        include_ended: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ApiToken]:
        """Tokens, newest first; without those that are revoked or have expired."""
        check_page(limit)
        bound = ("tokens", user_id, include_ended)
        created_at, token_id = position_of(cursor, bound, _read_position) or (None, None)
        found = await self._store.gateway.rows(
            _PAGE,
            (user_id, user_id, include_ended, created_at, created_at, token_id, limit + 1),
            into=_token_of,
        )
        return page_of(found, limit, bound, lambda token: [token.created_at, token.token_id])

    async def revoke(
        self, token_id: str, *, reason: str | None = None, actor: str | None = None
    ) -> datetime:
        """End a token; services notice within five seconds. A second call changes nothing."""
        params = (_check_id(token_id), check_operator(actor), check_reason(reason))
        revoked_at: datetime | None = await self._store.gateway.value(_REVOKE, params)
        if revoked_at is None:
            raise _no_such(token_id)
        return revoked_at

    # -- proving

    @staticmethod
    def split(text: str) -> tuple[str, str] | None:
        """The id and the secret of a token, or None if it is not written like one."""
        match = _TOKEN.match(text)
        return None if match is None else (match[1], match[2])

    async def find(self, token_id: str) -> StoredToken | None:
        """What is stored of a token, also of one that has ended; None if there is none."""
        return await self._store.gateway.row(_FIND, (token_id,), into=_stored_token_of)

    async def find_many(self, token_ids: Collection[str]) -> dict[str, StoredToken]:
        """What is stored of tokens, by id, also of those that have ended."""
        found = await self._store.gateway.rows(
            _FIND_MANY, (list(token_ids),), into=_stored_token_of
        )
        return {stored.token.token_id: stored for stored in found}

    def is_proved(self, stored: StoredToken | None, secret: str) -> bool:
        """Whether the secret is that of the token, and the token is still good."""
        expected = _NOTHING if stored is None else stored.secret_hash
        is_right = self._peppers.proves(secret, expected)
        if stored is None or not is_live(stored.token, datetime.now(UTC)):
            return False
        if not is_right:
            self._peppers.explain(expected)
        return is_right

    async def touch(self, token_id: str) -> None:
        """Note that it is in use, once a minute at most."""
        await self._store.gateway.rows(_TOUCH, (token_id,))

    def key_for(self, name: str) -> bytes:
        """A key of the service for something else than tokens, the same in all its processes."""
        return self._peppers.key_for(name)

    def _hash(self, secret: str) -> bytes:
        return self._peppers.hashed(secret)

    # -- what is weak

    async def findings(self) -> list[Finding]:
        """What is weak about the tokens in use; the doctor says it too."""
        async with self._store.gateway.snapshot() as session:
            return await token_findings(session, self._peppers)

    async def _refuse_other_pepper(self) -> None:
        """Refuse a token that the services on this database would not accept.

        It is made on a machine that has another pepper, or none yet, than the one that made the
        tokens in use.
        """
        found = await self._store.gateway.rows(TOKENS_IN_USE, (HASH_BYTES,))
        marks = {mark for mark, *_ in found if mark}
        unknown = self._peppers.unknown(marks)
        if unknown and unknown == marks:
            raise InvalidSettingError(
                "services on this database would not accept a token that is made here: a token in "
                f"use {self._peppers.difference(unknown)}. If that pepper is lost, revoke its "
                "tokens first"
            )


def is_live(token: ApiToken, now: datetime) -> bool:
    """Whether a token is neither revoked nor expired."""
    return token.revoked_at is None and (token.expires_at is None or now < token.expires_at)


def _new_secret() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).decode().rstrip("=")


def _check_id(token_id: str) -> str:
    if not _ID.match(str(token_id)):
        raise InvalidInputError(
            "the id of a token is 32 of 0-9 and a-f, the part between cb_ and the next _; "
            "`commandbus token list` shows it"
        )
    return token_id


def _no_such(token_id: str) -> InvalidOperationError:
    return InvalidOperationError(
        f"no token {token_id}; `commandbus token list --all` lists what there is"
    )


def _check_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    names = ", ".join(Scope)
    try:
        found = frozenset(Scope(name) for name in scopes)
    except ValueError as error:
        raise InvalidInputError(f"no scope {str(error).split()[0]}; use some of {names}") from None
    if not found:
        raise InvalidInputError(f"a token needs at least one scope: {names}")
    return found


def _check_domains(domains: Iterable[str] | None) -> frozenset[str] | None:
    if domains is None:
        return None
    found = frozenset(check_domain(domain) for domain in domains)
    if not found:
        raise InvalidInputError("name at least one domain, or None for all of them")
    return found


def _read_position(moment: str, token_id: str) -> tuple[datetime, str]:
    return read_moment(moment), UUID(token_id).hex


def _token_of(
    token_id: str, user_id: str, scopes: list[str], domains: list[str] | None, *others: Any
) -> ApiToken:
    return ApiToken(
        token_id,
        user_id,
        # A newer version may have stored scopes that this one does not know.
        frozenset(Scope(name) for name in scopes if name in _SCOPES),
        None if domains is None else frozenset(domains),
        *others,
    )


def _stored_token_of(*row: Any) -> StoredToken:
    return StoredToken(_token_of(*row[:-1]), bytes(row[-1]))
