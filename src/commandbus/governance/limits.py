"""Limits: the counter of requests, what headers show, and what administrators change."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import Any, LiteralString

from commandbus.access.callers import demand
from commandbus.access.model import Caller, Scope
from commandbus.access.users import MAX_USER_ID
from commandbus.database import encoding
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, PermissionDeniedError, RateLimitExceededError
from commandbus.governance.model import Exemption, LimitsStatus, LimitState, LimitType, UserLimits
from commandbus.governance.tickets import limit_of
from commandbus.names import check_text, in_utc
from commandbus.privacy.redaction import redact_text
from commandbus.settings import MAX_COOLDOWN_SECONDS, Settings, check_number

_COUNT_REQUEST: LiteralString = "select current_value, reset_seconds from {schema}.count_request()"
_STATES: LiteralString = (
    "select limit_type, scope, current_value, max_value, reset_seconds"
    " from {schema}.limit_states(cast(%s as text), cast(%s as jsonb))"
)
_PENDING_USERS: LiteralString = (
    "select user_id, limit_type, scope, current_value, max_value, reset_seconds"
    " from {schema}.pending_users(cast(%s as jsonb))"
)
_SET_EXEMPTION: LiteralString = "select {schema}.set_exemption(%s, %s, %s, cast(%s as timestamptz))"
_CLEAR_EXEMPTION: LiteralString = "select {schema}.clear_exemption(%s, %s)"
_EXEMPTIONS: LiteralString = (
    "select e.user_id, e.exempted_by, e.reason, e.expires_at, e.created_at"
    " from {schema}.rate_limit_exemption e"
    " where e.expires_at is null or e.expires_at > clock_timestamp() order by e.user_id"
)
_SET_USER_LIMITS: LiteralString = (
    "select user_id, max_pending_batches, max_pending_children, cooldown_seconds, updated_by,"
    " updated_at from {schema}.set_user_limits(%s, %s, cast(%s as int), cast(%s as int),"
    " cast(%s as int))"
)
_USER_LIMITS: LiteralString = (
    "select o.user_id, o.max_pending_batches, o.max_pending_children, o.cooldown_seconds,"
    " o.updated_by, o.updated_at from {schema}.rate_limit_override o order by o.user_id"
)


def check_user(user_id: Any) -> str:
    """Return the user id, or raise InvalidInputError."""
    return check_text(user_id, "user_id", max_length=MAX_USER_ID)


def _demand_admin(caller: Caller, what: str) -> None:
    demand(caller, Scope.ADMIN, what)
    if caller.domains is not None:
        # Limits count what a user has pending in all domains.
        raise PermissionDeniedError(Scope.ADMIN.value, f"{what}, which touches every domain,")


class Limits:
    """Counts requests and shows limits for each caller; changes them for administrators."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        #: The limits of users who have no others, and the global ones, by limit type.
        self._defaults: dict[str, int] = {
            LimitType.GLOBAL_PENDING_BATCHES.value: settings.max_global_pending_batches,
            LimitType.GLOBAL_API_REQUESTS.value: settings.max_global_api_requests,
            LimitType.USER_PENDING_BATCHES.value: settings.max_user_pending_batches,
            LimitType.USER_COOLDOWN.value: settings.user_cooldown_seconds,
            LimitType.USER_PENDING_CHILDREN.value: settings.max_user_pending_children,
        }

    async def count_request(self, user_id: str) -> LimitState:
        """Count one API request, whatever becomes of it; RateLimitExceededError if it is too many.

        In a transaction of its own, so that a request that is refused later counts too. The
        limit is global: no exemption of the user lifts it.
        """
        check_user(user_id)
        ((current_value, reset_seconds),) = await self._store.gateway.rows(_COUNT_REQUEST)
        kind = LimitType.GLOBAL_API_REQUESTS
        max_value = self._defaults[kind]
        if current_value > max_value:
            raise RateLimitExceededError(
                kind, "global", current_value, max_value, reset_seconds, contact_admin=False
            )
        return LimitState(kind, "global", current_value, max_value, reset_seconds)

    async def limit_states(self, user_id: str) -> tuple[LimitState, ...]:
        """How full the limits are for this user, in the order in which they are checked."""
        return await self._states(check_user(user_id))

    async def exempt(
        self, caller: Caller, user_id: str, reason: str, *, expires_at: datetime | None = None
    ) -> Exemption:
        """Lift the limits per user for this one, until `expires_at` or until it is taken back.

        A second exemption of the same user replaces the first.
        """
        _demand_admin(caller, "exempting a user")
        if expires_at is not None:
            if expires_at.tzinfo is None:
                raise InvalidInputError("expires_at must be a time with a time zone")
            if expires_at <= datetime.now(UTC):
                raise InvalidInputError("expires_at is in the past; choose a later time")
            expires_at = in_utc(expires_at)
        user, actor = check_user(user_id), caller.user_id
        text = redact_text(check_text(reason, "reason"))
        created_at = await self._store.gateway.value(
            _SET_EXEMPTION, (user, actor, text, expires_at)
        )
        return Exemption(user, actor, text, expires_at, created_at)

    async def unexempt(self, caller: Caller, user_id: str) -> bool:
        """Take an exemption back; False if there was none."""
        _demand_admin(caller, "ending an exemption")
        params = (check_user(user_id), caller.user_id)
        return bool(await self._store.gateway.value(_CLEAR_EXEMPTION, params))

    async def set_user_limits(self, caller: Caller, limits: UserLimits) -> UserLimits:
        """Give a user limits of its own. What is None stays as it is; all None: none any more.

        `updated_by` and `updated_at` of the argument are ignored.
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
        params = (
            limits.user_id, caller.user_id, limits.max_pending_batches,
            limits.max_pending_children, limits.cooldown_seconds,
        )  # fmt: skip
        found = await self._store.gateway.row(_SET_USER_LIMITS, params, into=UserLimits)
        return found or UserLimits(limits.user_id)

    async def limits_status(self, caller: Caller) -> LimitsStatus:
        """The limits in force, how full they are, and who is excepted."""
        _demand_admin(caller, "the status of the limits")
        gateway = self._store.gateway
        users = await gateway.rows(_PENDING_USERS, (encoding.dump(self._defaults),))
        return LimitsStatus(
            limits=await self._states(None),
            defaults=dict(self._defaults),
            exemptions=tuple(await gateway.rows(_EXEMPTIONS, into=Exemption)),
            overrides=tuple(await gateway.rows(_USER_LIMITS, into=UserLimits)),
            users=tuple(
                (user_id, tuple(limit_of(*row[1:]) for row in rows))
                for user_id, rows in groupby(users, key=lambda row: str(row[0]))
            ),
        )

    async def _states(self, user_id: str | None) -> tuple[LimitState, ...]:
        # None: the global limits only.
        params = (user_id, encoding.dump(self._defaults))
        return tuple(await self._store.gateway.rows(_STATES, params, into=limit_of))
