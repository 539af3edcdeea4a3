"""Ordering keys."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Path
from pydantic import Field

from commandbus.commands.ordering import KeyPlace, OnPark, OrderingKey
from commandbus.flow import MAX_KEY_LENGTH
from commandbus.http.schemas.base import Form, Reason, example
from commandbus.http.schemas.views import View, view_of

KeyPath = Annotated[str, Path(min_length=1, max_length=MAX_KEY_LENGTH, examples=["account:42"])]


@view_of(
    OrderingKey,
    describe={
        "head": "The command whose turn it is.",
        "is_blocked": "The head is parked, and nothing behind it starts.",
        "waiting": "How many are behind the head.",
        "since": "When it was blocked, or since when the first of those behind the head waits.",
    },
)
class OrderingKeyView(View):
    """A key that has open commands."""


@view_of(KeyPlace, describe={"place": "0: its turn; those behind it count from 1."})
class KeyPlaceView(View):
    """A command of a key."""


class KeyView(View):
    """The commands of a key in their order; none if nothing of it is open."""

    domain: str
    ordering_key: str
    places: list[KeyPlaceView]


class SkipKey(Form):
    """Step over the command that blocks a key."""

    model_config = example(reason="wrong account, will be sent again")

    reason: Reason
    expected: UUID | None = Field(None, description="Only if this command blocks it.")


class Skipped(View):
    """What was stepped over; it stays parked."""

    domain: str
    ordering_key: str
    stepped_over: UUID


class SetKeyPolicy(Form):
    """What a parked command does to its key."""

    model_config = example(on_park="skip", reason="each of these stands alone")

    on_park: OnPark
    reason: Reason


class KeyPolicyView(View):
    """What a parked command of a domain does to its key."""

    domain: str
    on_park: OnPark
