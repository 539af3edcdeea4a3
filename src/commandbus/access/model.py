"""Who calls: scopes, callers, API tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Caller:
    """A user who has been authenticated."""

    user_id: str
    scopes: frozenset[Scope]
    #: The domains it may touch; None: all of them.
    domains: frozenset[str] | None = None
    #: Of its API token, for the audit; None: it came with another proof.
    token_id: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether it has this scope."""
        return scope in self.scopes or (
            Scope.ADMIN in self.scopes and scope is not Scope.BYPASS_GOVERNANCE
        )

    def reaches(self, domain: str) -> bool:
        """Whether it may touch this domain."""
        return self.domains is None or domain in self.domains


@dataclass(frozen=True, slots=True)
class ApiToken:
    """An API token, without its secret."""

    token_id: str
    user_id: str
    scopes: frozenset[Scope]
    domains: frozenset[str] | None
    label: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def caller(self) -> Caller:
        """The caller who comes with it."""
        return Caller(self.user_id, self.scopes, self.domains, self.token_id)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made. `text` is shown once and stored nowhere."""

    token: ApiToken
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token with the HMAC of its secret."""

    token: ApiToken
    secret_hash: bytes = field(repr=False)


class Scope(StrEnum):
    """What a caller may do. None of them contains another, except that ADMIN contains all but the
    last, which must be given by name.
    """

    READ = "read"
    READ_PAYLOAD = "read-payload"
    SEND = "send"
    #: Governed batches, of types that name no other scope.
    SUBMIT = "submit"
    OPERATE = "operate"
    APPROVE = "approve"
    ADMIN = "admin"
    #: Touch a governed command type outside its batch type; the audit says so each time.
    BYPASS_GOVERNANCE = "bypass-governance"


#: What "everything" means where nobody has named single scopes.
EVERYTHING = frozenset(Scope) - {Scope.BYPASS_GOVERNANCE}
