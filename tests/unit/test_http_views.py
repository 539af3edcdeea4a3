"""Views are made from data classes: what they show, hide, rename, add and refuse."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import pytest

from commandbus.http.schemas.commands import CommandView
from commandbus.http.schemas.views import ListView, PageView, SearchPageView, View, view_of
from commandbus.models import CommandMetadata
from commandbus.paging import Page


@dataclass(frozen=True)
class Wheel:
    size: int
    serial: str


@dataclass(frozen=True)
class Car:
    car_id: int
    secret: str
    wheels: tuple[Wheel, ...]
    color: str | None = None


@view_of(Wheel, hide=("serial",), describe={"size": "In inches."})
class WheelView(View):
    """A wheel."""


@view_of(Car, hide=("secret",), rename={"car_id": "id"})
class CarView(View):
    """A car."""

    url: str
    wheels: list[WheelView]


CAR = Car(7, "hunter2", (Wheel(17, "x"), Wheel(18, "y")))
SHOWN = {"id": 7, "wheels": [{"size": 17}, {"size": 18}], "color": None, "url": "/cars/7"}


def schema_of(view: type[View]) -> dict[str, Any]:
    return view.model_json_schema(mode="serialization")


def test_a_view_shows_the_fields_of_its_data_class_and_those_that_it_adds() -> None:
    shown = CarView.of(CAR, url="/cars/7")

    assert shown.model_dump(mode="json") == SHOWN
    assert list(shown.model_dump()) == ["id", "wheels", "color", "url"]


def test_every_field_is_required_and_described_in_the_document() -> None:
    car, wheel = schema_of(CarView), schema_of(WheelView)

    assert (car["title"], car["description"]) == ("CarView", "A car.")
    assert set(car["required"]) == set(SHOWN)
    assert wheel["properties"]["size"]["description"] == "In inches."


def test_a_new_field_of_a_data_class_is_in_its_view() -> None:
    hidden = {"queue_name", "msg_id", "lease_epoch"}

    assert set(CommandView.model_fields) == {
        spec.name for spec in fields(CommandMetadata) if spec.name not in hidden
    }


@pytest.mark.parametrize(
    "options", [{"hide": ("colour",)}, {"rename": {"nr": "id"}}, {"describe": {"car": "x"}}]
)
def test_a_field_that_is_not_there_cannot_be_hidden_renamed_or_described(options: Any) -> None:
    with pytest.raises(TypeError, match="has no"):

        @view_of(Car, **options)
        class Wrong(View):
            """Not made."""


def test_a_page_of_the_bus_becomes_a_page_of_views() -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    page = Page([Wheel(17, "x")], "next", at)

    assert PageView[WheelView].of(page).model_dump() == {
        "items": [{"size": 17}], "next_cursor": "next",
    }  # fmt: skip
    assert SearchPageView[WheelView].of(page).searched_to == at
    assert set(ListView[WheelView].model_fields) == {"items"}
