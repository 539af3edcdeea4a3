"""Rate limits: how full each layer is, who is throttled, who is excepted until when, and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from fastapi import Query
from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.access.users import MAX_USER_ID
from commandbus.access.visibility import sees_access
from commandbus.errors import InvalidInputError
from commandbus.governance.model import Exemption, LimitsStatus, LimitState, LimitType, UserLimits
from commandbus.http.console.forms import Fields, Form
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show
from commandbus.http.problems import not_found

#: How long an exemption may be chosen to last: seconds as a text, and words. The first is preset.
ENDS = [
    ("86400", "24 hours"),
    ("3600", "1 hour"),
    ("604800", "7 days"),
    ("2592000", "30 days"),
    ("", "until somebody ends it"),
]
#: The fields of a user's own limits: their name, words, unit, and the limit that they are of.
FIELDS = [
    ("max_pending_batches", "Batches pending", "", LimitType.USER_PENDING_BATCHES),
    ("max_pending_children", "Items pending", "", LimitType.USER_PENDING_CHILDREN),
    ("cooldown_seconds", "Between two requests", " s", LimitType.USER_COOLDOWN),
]
#: What a limit is called.
WORDS = {
    LimitType.GLOBAL_PENDING_BATCHES: "Batches pending, of all users",
    LimitType.GLOBAL_API_REQUESTS: "Requests in this window, of all users",
    **{kind: words for _, words, _, kind in FIELDS},
}

UserQuery = Annotated[str | None, Query(min_length=1, max_length=MAX_USER_ID)]

screen = Screen("limits", "Rate limits", order=110, group=Group.RUNNING, icon="gauge")


class Meter(NamedTuple):
    """One limit, for a page."""

    words: str
    value: int
    #: None: lifted by an exemption.
    top: int | None
    unit: str
    reset_seconds: int | None


class UserLine(NamedTuple):
    """One user."""

    user_id: str
    meters: list[Meter]
    exemption: Exemption | None
    limits: UserLimits | None


@screen.page("/limits", live=5.0, personal=True)
async def show(view: Show, user_id: UserQuery = None) -> Page:
    """All layers for administrators of all domains; for others their own."""
    if not sees_access(view.caller):
        states = await view.bus.governance.limit_states(view.caller.user_id)
        return view.page("limits/own.html", "Rate limits", meters=[meter_of(x) for x in states])
    found = await view.bus.governance.limits_status(view.caller)
    lines = [_line(found, user, states) for user, states in found.users]
    if user_id is not None:
        lines = [each for each in lines if each.user_id == user_id]
        if not lines:
            states = await view.bus.governance.limit_states(user_id)
            lines = [_line(found, user_id, tuple(x for x in states if x.scope == "user"))]
    return view.page(
        "limits/index.html",
        "Rate limits",
        meters=[meter_of(each) for each in found.limits],
        lines=lines,
        user_id=user_id,
        exemptions=found.exemptions,
        overrides=found.overrides,
        defaults={name: found.defaults[kind.value] for name, _, _, kind in FIELDS},
        fields=FIELDS,
        has_types=len(view.bus.governance.types.all()) > 1,  # one is the console's own
    )


# -- exemptions


@screen.page("/limits/exempt", scope=Scope.ADMIN)
async def ask_exempt(view: Show, user_id: UserQuery = None) -> Page:
    """The page before an exemption."""
    verb = f"Exempt {user_id}" if user_id else "Exempt a user"
    return view.page(
        "limits/exempt.html",
        verb,
        verb=verb,
        action=view.url("limits.exempt"),
        back=view.url("limits"),
        user_id=user_id or "",
        happens=[
            "The limits of users do not hold for this one: pending batches and items, and the "
            "time between requests.",
            "An exemption that is there is replaced.",
        ],
        stays=["The global limits still hold.", "It ends by itself, or when somebody ends it."],
        look="primary",
        choices=ENDS,
    )


@screen.action("/limits/exempt", scope=Scope.ADMIN)
async def exempt(view: Show, form: Fields) -> Response:
    """Lift the limits of a user."""
    seconds = form.text("seconds", ENDS[0][0])
    if seconds not in {code for code, _ in ENDS}:
        raise InvalidInputError("choose when the exemption ends")
    ends = datetime.now(UTC) + timedelta(seconds=int(seconds)) if seconds else None
    user = form.required("user_id", "User")
    await view.bus.governance.exempt(
        view.caller, user, form.required("reason", "Reason"), expires_at=ends
    )
    return view.to("limits", f"{user} is exempt.")


@screen.page("/limits/unexempt", scope=Scope.ADMIN)
async def ask_unexempt(view: Show, user_id: UserQuery = None) -> Page:
    """The page before the end of an exemption."""
    if user_id is None:
        return view.page("limits/nobody.html", "End an exemption")
    found = await view.bus.governance.limits_status(view.caller)
    if user_id not in {each.user_id for each in found.exemptions}:
        raise not_found("this user has no exemption")
    verb = f"End the exemption of {user_id}"
    return view.page(
        "confirm.html",
        verb,
        verb=verb,
        action=view.url("limits.unexempt"),
        back=view.url("limits"),
        fields={"user_id": user_id},
        happens=["The limits hold for this user again, from the next request on."],
        stays=["What the user has pending stays, and runs."],
        look="primary",
    )


@screen.action("/limits/unexempt", scope=Scope.ADMIN)
async def unexempt(view: Show, form: Fields) -> Response:
    """Let the limits hold again."""
    form.required("reason", "Reason")
    user = form.required("user_id", "User")
    was_there = await view.bus.governance.unexempt(view.caller, user)
    notice = f"The exemption of {user} has ended." if was_there else "There was none any more."
    return view.to("limits", notice)


# -- limits of one user


@screen.page("/limits/change", scope=Scope.ADMIN)
async def ask_change(view: Show, user_id: UserQuery = None) -> Page:
    """The form of a user's own limits."""
    found = await view.bus.governance.limits_status(view.caller)
    current = _limits_of(found, user_id or "")
    return view.page(
        "limits/change.html", f"Limits of {user_id or 'a user'}", user_id=user_id or "",
        current=current, fields=_old_and_new(found, current),
    )  # fmt: skip


@screen.action("/limits/review", scope=Scope.ADMIN, audited=False)
async def review(view: Show, form: Fields) -> Page:
    """What would change, before it does: old and new of each field."""
    wanted = _wanted(form)
    found = await view.bus.governance.limits_status(view.caller)
    rows = _old_and_new(found, _limits_of(found, wanted.user_id), wanted)
    changed = [f"{words}: {old} → {new}" for _, words, old, new in rows if old != new]
    is_removal = form.text("remove") == "1"
    if not changed:
        raise InvalidInputError("that is what holds already; nothing would change")
    verb = f"{'Remove' if is_removal else 'Change'} the limits of {wanted.user_id}"
    return view.page(
        "confirm.html",
        verb,
        verb=verb,
        action=view.url("limits.change"),
        back=view.url("limits"),
        fields={
            "user_id": wanted.user_id,
            "remove": form.text("remove"),
            **{name: _text(getattr(wanted, name)) for name, *_ in FIELDS},
        },
        happens=[*changed, "It holds from the user's next request on."],
        stays=[
            *(f"{words}: {old}" for _, words, old, new in rows if old == new),
            "What the user has pending stays, and runs.",
        ],
        look="primary",
    )


@screen.action("/limits/change", scope=Scope.ADMIN)
async def change(view: Show, form: Fields) -> Response:
    """Give a user limits of its own, or take them away."""
    form.required("reason", "Reason")
    wanted = _wanted(form)
    await view.bus.governance.set_user_limits(view.caller, wanted)
    return view.to("limits", f"The limits of {wanted.user_id} are changed.")


def _wanted(form: Form) -> UserLimits:
    user = form.required("user_id", "User")
    if form.text("remove") == "1":
        return UserLimits(user)
    given: dict[str, Any] = {name: form.number(name) for name, *_ in FIELDS}
    found = UserLimits(user, **given)
    if all(each is None for each in given.values()):
        raise InvalidInputError("fill in at least one limit; what is empty stays as it is")
    return found


def _old_and_new(
    found: LimitsStatus, current: UserLimits | None, wanted: UserLimits | None = None
) -> list[tuple[str, str, str, str]]:
    """Name, words, what holds, and what would: a field that is not given stays."""
    rows = []
    is_removal = wanted is not None and all(getattr(wanted, n) is None for n, *_ in FIELDS)
    for name, words, unit, kind in FIELDS:
        default = f"{found.defaults[kind.value]:,}{unit} (the default)"
        own = None if current is None else getattr(current, name)
        old = default if own is None else f"{own:,}{unit}"
        given = None if wanted is None else getattr(wanted, name)
        new = default if is_removal else old if given is None else f"{given:,}{unit}"
        rows.append((name, words, old, new))
    return rows


def _limits_of(found: LimitsStatus, user_id: str) -> UserLimits | None:
    return next((each for each in found.overrides if each.user_id == user_id), None)


def _line(found: LimitsStatus, user_id: str, states: tuple[LimitState, ...]) -> UserLine:
    exemption = next((each for each in found.exemptions if each.user_id == user_id), None)
    return UserLine(user_id, [meter_of(x) for x in states], exemption, _limits_of(found, user_id))


def meter_of(state: LimitState) -> Meter:
    """One limit, in words."""
    unit = " s" if state.limit_type is LimitType.USER_COOLDOWN else ""
    return Meter(
        WORDS[state.limit_type], state.current_value, state.max_value, unit, state.reset_seconds
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
