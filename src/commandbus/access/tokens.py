"""API tokens: made, listed, revoked, and proved.

A token is `cb_<id>_<secret>`. The secret has 256 random bits and is shown once; what is stored is
its HMAC-SHA-256 under the pepper of the service. A fast hash is enough for a random secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.governance.model import ApiToken, Scope
from commandbus.names import check_domain, check_operator, check_text
from commandbus.paging import check_page
from commandbus.privacy.redaction import redact_text
from commandbus.store.tokens import StoredToken, TokenStore

SECRET_BYTES = 32
#: Longest life that can be asked for.
MAX_LIFE = timedelta(days=3_650)

_TOKEN = re.compile(r"cb_([0-9a-f]{32})_([A-Za-z0-9_-]{43})\Z")
_ID = re.compile(r"[0-9a-f]{32}\Z")
# Compared with when there is no such token, so that an unknown id takes as long as a wrong secret.
_NOTHING = bytes(32)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made. `text` is shown once and stored nowhere."""

    token: ApiToken
    text: str = field(repr=False)


class Tokens:
    """Makes and proves API tokens."""

    def __init__(self, store: Store, pepper: str) -> None:
        self._plain_store = store
        self._pepper = pepper.encode()

    @property
    def store(self) -> TokenStore:
        """The store, if it can do this."""
        if not isinstance(self._plain_store, TokenStore):
            raise InvalidOperationError(
                "the in-memory store has no API tokens; test them on the embedded server"
            )
        return self._plain_store

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
            user_id=check_text(user_id, "user", max_length=200),
            scopes=_check_scopes(scopes),
            domains=_check_domains(domains),
            label=None if label is None else redact_text(check_text(label, "label"), 200),
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
            revoked_at=None,
            last_used_at=None,
        )
        secret = base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).decode().rstrip("=")
        stored = await self.store.create_token(
            token, self._hash(secret), actor=check_operator(actor)
        )
        return NewToken(stored, f"cb_{token.token_id}_{secret}")

    async def list(
        self, *, user_id: str | None = None, include_ended: bool = False, limit: int = 100
    ) -> list[ApiToken]:
        """Tokens, newest first; without those that are revoked or have expired."""
        check_page(limit)
        return await self.store.list_tokens(
            user_id=user_id, include_ended=include_ended, limit=limit
        )

    async def revoke(self, token_id: str, *, actor: str | None = None) -> datetime:
        """End a token; services notice within five seconds. A second call changes nothing."""
        if not _ID.match(str(token_id)):
            raise InvalidInputError(
                "the id of a token is 32 of 0-9 and a-f, the part between cb_ and the next _; "
                "`commandbus token list` shows it"
            )
        revoked_at = await self.store.revoke_token(token_id, actor=check_operator(actor))
        if revoked_at is None:
            raise InvalidOperationError(
                f"no token {token_id}; `commandbus token list --all` lists what there is"
            )
        return revoked_at

    # -- proving

    @staticmethod
    def split(text: str) -> tuple[str, str] | None:
        """The id and the secret of a token, or None if it is not written like one."""
        match = _TOKEN.match(text)
        return None if match is None else (match[1], match[2])

    async def find(self, token_id: str) -> StoredToken | None:
        """What is stored of a token."""
        return await self.store.find_token(token_id)

    def is_proved(self, stored: StoredToken | None, secret: str) -> bool:
        """Whether the secret is that of the token, and the token is still good."""
        expected = _NOTHING if stored is None else stored.secret_hash
        is_right = hmac.compare_digest(self._hash(secret), expected)
        return is_right and stored is not None and is_live(stored.token, datetime.now(UTC))

    async def touch(self, token_id: str) -> None:
        """Note that it is in use."""
        await self.store.touch_token(token_id)

    def _hash(self, secret: str) -> bytes:
        return hmac.new(self._pepper, secret.encode(), hashlib.sha256).digest()


def is_live(token: ApiToken, now: datetime) -> bool:
    """Whether a token is neither revoked nor expired."""
    return token.revoked_at is None and (token.expires_at is None or now < token.expires_at)


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
