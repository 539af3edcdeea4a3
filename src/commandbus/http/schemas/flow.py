"""When a command may start, in which order and under which limit, in a request; and pauses."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator, Field, Strict

from commandbus.errors import InvalidInputError
from commandbus.flow import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MAX_DELAY_SECONDS,
    MAX_EXPIRY_SECONDS,
    MAX_KEY_LENGTH,
    MAX_PAUSE_SECONDS,
    Pause,
    SendOptions,
    options_of,
)
from commandbus.http.schemas.base import Flag, Form, Reason, TypeName, Whole, example, written
from commandbus.http.schemas.views import View, view_of
from commandbus.meta import MAX_META_KEYS

#: Of a body, with its zone.
Time = Annotated[AwareDatetime, BeforeValidator(written), Field(examples=["2026-05-01T10:00:00Z"])]
Seconds = Annotated[float, Strict()]
#: `commandbus.meta` checks the rest of it.
Meta = Annotated[
    dict[str, str],
    Field(
        max_length=MAX_META_KEYS,
        description="Texts that travel with the command beside its data; operators see them.",
        examples=[{"tenant": "north"}],
    ),
]
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH)]


class FlowForm(Form):
    """What a command may say about its start; all of it may be left out."""

    deliver_at: Time | None = Field(
        None, description="Not before this time; one in the past is now. At most a year ahead."
    )
    delay_seconds: Seconds | None = Field(
        None, ge=0, le=MAX_DELAY_SECONDS, description="The same, counted by the database's clock."
    )
    expires_at: Time | None = Field(
        None, description="If it has not begun by then, it ends as CANCELED."
    )
    expires_in_seconds: Seconds | None = Field(None, ge=0.001, le=MAX_EXPIRY_SECONDS)
    priority: Whole | None = Field(
        None, ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY, description="The highest goes first."
    )
    ordering_key: Key | None = Field(
        None, description="Commands of one key run one after the other, in their order."
    )
    limit_key: Key | None = Field(
        None, description="What limits by key count it by; else its ordering_key."
    )

    meta: Meta | None = None

    def options(self) -> SendOptions:
        """As the verbs of the bus take them."""
        return options_of({name: getattr(self, name) for name in FlowForm.model_fields})


class Reschedule(Form):
    """Another time for a command that has not begun: one of the three."""

    model_config = example(delay_seconds=600)

    deliver_at: Time | None = Field(None, description="A time in the past is now.")
    delay_seconds: Seconds | None = Field(None, ge=0, le=MAX_DELAY_SECONDS)
    now: Flag = Field(False, description="true: at once.")

    def arguments(self) -> dict[str, Any]:
        """As `bus.reschedule` takes them."""
        given = [self.deliver_at is not None, self.delay_seconds is not None, self.now]
        if sum(given) != 1:
            raise InvalidInputError("give one of deliver_at, delay_seconds and now: true")
        return {
            "deliver_at": self.deliver_at,
            "delay": 0.0 if self.now else self.delay_seconds,
        }


class NewPriority(Form):
    """Another level for a command that has not begun."""

    model_config = example(priority=2)

    priority: Whole = Field(
        ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY, description="The highest goes first; 0 is normal."
    )


class LevelWorth(Form):
    """How many seconds of waiting one level of priority is worth."""

    model_config = example(level_seconds=60)

    level_seconds: Seconds = Field(ge=0, le=MAX_DELAY_SECONDS, description="0: levels are ignored.")


class PauseDomain(Form):
    """Why, and until when; without an end until it is resumed."""

    model_config = example(reason="the bank is closed")

    reason: Reason = Field(max_length=1_000)
    type: TypeName | None = Field(None, description="Only this command type.")
    until: Time | None = None
    seconds: Seconds | None = Field(None, gt=0, le=MAX_PAUSE_SECONDS, description="Instead of it.")

    def end(self) -> Any:
        """As `bus.pause` takes it."""
        return self.until if self.seconds is None else timedelta(seconds=self.seconds)


class ResumeDomain(Form):
    """What is to be resumed: the domain, or one of its command types."""

    type: TypeName | None = None
    reason: Reason | None = None


@view_of(Pause, hide=("domain",))
class PauseView(View):
    """A pause: since when, until when, by whom and why."""


class Paused(View):
    """What of a domain is paused now; `was_paused`: whether it, or the type, was before."""

    domain: str
    paused: PauseView | None
    paused_types: list[PauseView]
    was_paused: bool
