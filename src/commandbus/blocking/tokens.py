"""`bus.tokens` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from datetime import timedelta

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime
    from commandbus.access.model import ApiToken, NewToken, StoredToken
    from commandbus.access.tokens import Tokens
    from commandbus.paging import Page
    from commandbus.upkeep.findings import Finding


class BlockingTokens(BlockingFacet["Tokens"]):
    """`bus.tokens`: makes and proves API tokens; needs PostgreSQL."""

    def create(
        self, user_id: str, scopes: Iterable[str], *, domains: Iterable[str] | None = None,
        label: str | None = None, expires_in: timedelta | None = None, actor: str | None = None,
    ) -> NewToken:
        """Make a token; `domains=None`: for all of them, `expires_in=None`: until it is
        revoked."""
        return self._bridge.run(self._facet.create(
            user_id, scopes, domains=domains, label=label, expires_in=expires_in, actor=actor,
        ))

    def rotate(
        self, token_id: str, *, overlap: timedelta = timedelta(0), actor: str | None = None,
    ) -> NewToken:
        """Make a token with the same user, rights and end in place of this one."""
        return self._bridge.run(self._facet.rotate(token_id, overlap=overlap, actor=actor))

    def page(
        self, *, user_id: str | None = None, include_ended: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ApiToken]:
        """Tokens, newest first; without those that are revoked or have expired."""
        return self._bridge.run(self._facet.page(
            user_id=user_id, include_ended=include_ended, limit=limit, cursor=cursor,
        ))

    def revoke(
        self, token_id: str, *, reason: str | None = None, actor: str | None = None,
    ) -> datetime:
        """End a token; services notice within five seconds. A second call changes nothing."""
        return self._bridge.run(self._facet.revoke(token_id, reason=reason, actor=actor))

    def split(self, text: str) -> tuple[str, str] | None:
        """The id and the secret of a token, or None if it is not written like one."""
        return self._facet.split(text)

    def find(self, token_id: str) -> StoredToken | None:
        """What is stored of a token, also of one that has ended; None if there is none."""
        return self._bridge.run(self._facet.find(token_id))

    def find_many(self, token_ids: Collection[str]) -> dict[str, StoredToken]:
        """What is stored of tokens, by id, also of those that have ended."""
        return self._bridge.run(self._facet.find_many(token_ids))

    def is_proved(self, stored: StoredToken | None, secret: str) -> bool:
        """Whether the secret is that of the token, and the token is still good."""
        return self._facet.is_proved(stored, secret)

    def touch(self, token_id: str) -> None:
        """Note that it is in use, once a minute at most."""
        return self._bridge.run(self._facet.touch(token_id))

    def key_for(self, name: str) -> bytes:
        """A key of the service for something else than tokens, the same in all its processes."""
        return self._facet.key_for(name)

    def findings(self) -> list[Finding]:
        """What is weak about the tokens in use; the doctor says it too."""
        return self._bridge.run(self._facet.findings())
