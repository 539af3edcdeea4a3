"""Limits as a service: the door's counter, what headers show, and what administrators change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from commandbus.access.callers import demand
from commandbus.errors import InvalidInputError, PermissionDeniedError, RateLimitExceededError
from commandbus.governance.model import (
    Caller,
    Exemption,
    LimitsStatus,
    LimitState,
    LimitType,
    Scope,
    UserLimits,
)
from commandbus.names import check_text
from commandbus.privacy.redaction import redact_text
from commandbus.settings import MAX_COOLDOWN_SECONDS, Settings, check_number
from commandbus.store.governing import GovernanceStore

#: Characters of a user id.
MAX_USER_ID = 200


def check_user(user_id: Any) -> str:
    """Return the user id, or raise InvalidInputError."""
    return check_text(user_id, "user_id", max_length=MAX_USER_ID)


def defaults_of(settings: Settings) -> dict[str, int]:
    """The limits that hold for whoever has no others."""
    return {
        LimitType.GLOBAL_PENDING_BATCHES.value: settings.max_global_pending_batches,
        LimitType.GLOBAL_API_REQUESTS.value: settings.max_global_api_requests,
        LimitType.USER_PENDING_BATCHES.value: settings.max_user_pending_batches,
        LimitType.USER_COOLDOWN.value: settings.user_cooldown_seconds,
        LimitType.USER_PENDING_CHILDREN.value: settings.max_user_pending_children,
    }


def _demand_admin(caller: Caller, what: str) -> None:
    demand(caller, Scope.ADMIN, what)
    if caller.domains is not None:
        # Limits count what a user has pending in all domains.
        raise PermissionDeniedError(Scope.ADMIN.value, f"{what}, which touches every domain,")


class LimitVerbs:
    """Part of Governance."""

    _store: GovernanceStore
    _defaults: dict[str, int]

    async def count_request(self, user_id: str) -> LimitState:
        """Count one API request, whatever becomes of it; RateLimitExceededError if it is too many.

        In a transaction of its own, so that a request that is refused later counts too. The
        limit is global: no exemption of the user lifts it.
        """
        check_user(user_id)
        current_value, reset_seconds = await self._store.count_request()
        kind = LimitType.GLOBAL_API_REQUESTS
        max_value = self._defaults[kind]
        if current_value > max_value:
            raise RateLimitExceededError(
                kind, "global", current_value, max_value, reset_seconds, contact_admin=False
            )
        return LimitState(kind, "global", current_value, max_value, reset_seconds)

    async def limit_states(self, user_id: str) -> tuple[LimitState, ...]:
        """How full the limits are for this user, in the order in which they are checked."""
        return await self._store.limit_states(check_user(user_id), self._defaults)

    async def exempt(
        self, caller: Caller, user_id: str, reason: str, *, expires_at: datetime | None = None
    ) -> Exemption:
        """Lift the user layer for a user, until `expires_at` or until it is taken back.

        A second exemption of the same user replaces the first.
        """
        _demand_admin(caller, "exempting a user")
        if expires_at is not None:
            if expires_at.tzinfo is None:
                raise InvalidInputError("expires_at must be a time with a time zone")
            if expires_at <= datetime.now(UTC):
                raise InvalidInputError("expires_at is in the past; choose a later time")
        return await self._store.set_exemption(
            check_user(user_id),
            actor=caller.user_id,
            reason=redact_text(check_text(reason, "reason")),
            expires_at=expires_at,
        )

    async def unexempt(self, caller: Caller, user_id: str) -> bool:
        """Take an exemption back; False if there was none."""
        _demand_admin(caller, "ending an exemption")
        return await self._store.clear_exemption(check_user(user_id), actor=caller.user_id)

    async def set_user_limits(self, caller: Caller, limits: UserLimits) -> UserLimits:
        """Give a user limits of its own. What is None stays as it is; all None: none any more.

        `updated_by` and `updated_at` of the argument are not looked at.
        """
        _demand_admin(caller, "changing a user's limits")
        check_user(limits.user_id)
        for name, high in (
            ("max_pending_batches", 1_000_000),
            ("max_pending_children", 100_000_000),
            ("cooldown_seconds", MAX_COOLDOWN_SECONDS),
        ):
            if getattr(limits, name) is not None:
                check_number(getattr(limits, name), name, 0, high, is_whole=True)
        return await self._store.set_user_limits(limits, actor=caller.user_id)

    async def limits_status(self, caller: Caller) -> LimitsStatus:
        """The limits in force, how full they are, and who is excepted."""
        _demand_admin(caller, "the status of the limits")
        return LimitsStatus(
            limits=await self._store.limit_states(None, self._defaults),
            defaults=dict(self._defaults),
            exemptions=tuple(await self._store.list_exemptions()),
            overrides=tuple(await self._store.list_user_limits()),
            users=await self._store.pending_users(self._defaults),
        )
