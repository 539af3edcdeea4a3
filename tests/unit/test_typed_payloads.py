"""Types of payloads: what fits them, how they become JSON, and how they come back."""

from __future__ import annotations

import dataclasses
import enum
import sys
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr, field_serializer
from pydantic import Secret as PydanticSecret

from commandbus import InvalidPayloadError, InvalidSettingError
from commandbus.typed.codec import codec_of
from commandbus.typed.writing import plain

Cents = NewType("Cents", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Switch(enum.Enum):
    ON = True

    @classmethod
    def _missing_(cls, value: object) -> Switch | None:
        return cls.ON if value == "on" else None


@dataclass
class Lamp:
    level: Level
    switch: Switch
    one: Literal[Level.LOW] = Level.LOW


@dataclass
class Part:
    name: str
    size: int = 1


class Address(TypedDict):
    city: str
    postcode: NotRequired[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    text: str
    number: int
    ratio: float
    flag: bool
    nothing: None
    choice: Literal["a", 1]
    colour: Colour
    id: UUID
    day: date
    at: datetime
    hour: time
    price: Decimal
    cents: Cents
    anything: Any
    parts: list[Part]
    by_name: dict[str, Part]
    pair: tuple[int, str]
    many: tuple[int, ...]
    unique: frozenset[int]
    either: int | str
    maybe: Part | None
    address: Address
    words: Sequence[str]
    table: Mapping[str, int]
    marked: Annotated[int, "a mark"] = 5
    child: Everything | None = None
    made: int = field(init=False, default=3)


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "text": "x", "number": 3, "ratio": 0.5, "flag": True, "nothing": None, "choice": "a",
        "colour": Colour.BLUE, "id": uuid4(), "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "hour": time(12, 30),
        "price": Decimal("10.50"), "cents": Cents(5), "anything": {"free": [1]},
        "parts": [Part("a"), Part("b", 2)], "by_name": {"c": Part("c")}, "pair": (1, "z"),
        "many": (1, 2), "unique": frozenset({4, 5}), "either": "word", "maybe": Part("d"),
        "address": {"city": "Rome"}, "words": ["one"], "table": {"k": 1},
    }  # fmt: skip
    return Everything(**{**values, **changes})


def problems(kind: Any, data: Any) -> list[tuple[str, str]]:
    return [(each.place, each.message) for each in codec_of(kind).problems(data)]


def read(kind: Any, data: Any) -> Any:
    reader = codec_of(kind).read
    assert reader is not None
    return reader(data)


def test_a_dataclass_with_every_kind_of_field_comes_back_as_it_was() -> None:
    value = everything(child=everything(maybe=None, choice=1, colour=Colour.RED))

    assert read(Everything, plain(value)) == value
    assert problems(Everything, plain(value)) == []


def test_true_is_no_number_of_an_enum_and_one_is_not_true() -> None:
    assert read(Lamp, {"level": 1, "switch": True}) == Lamp(Level.LOW, Switch.ON)
    assert read(Lamp, {"level": 1, "switch": "on"}).switch is Switch.ON
    assert problems(Lamp, {"level": True, "switch": 1, "one": True}) == [
        ("level", "must be a value of Level"),
        ("switch", "must be a value of Switch"),
        ("one", f"must be one of {Level.LOW!r}"),
    ]


def test_models_say_what_is_missing_in_the_words_of_dataclasses() -> None:
    class Model(BaseModel):
        amount: int

    @dataclass
    class Plain:
        amount: int

    said = [
        {each.line for each in codec_of(kind).problems({"ammount": 1})} for kind in (Model, Plain)
    ]
    assert said[0] == said[1] == {"amount is missing", "ammount is not one of its fields"}


def test_a_number_without_a_point_is_a_float_too() -> None:
    found = read(Everything, {**plain(everything()), "ratio": 2})

    assert (found.ratio, type(found.ratio)) == (2.0, float)


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({"text": 5}, "text", "must be text"),
        ({"number": True}, "number", "must be a whole number"),
        ({"number": 1.0}, "number", "must be a whole number"),
        ({"ratio": True}, "ratio", "must be a number"),
        ({"flag": 1}, "flag", "must be true or false"),
        ({"nothing": 0}, "nothing", "must be null"),
        ({"choice": True}, "choice", "must be one of 'a', 1"),
        ({"colour": "green"}, "colour", "must be a value of Colour"),
        ({"colour": []}, "colour", "must be a value of Colour"),
        ({"id": "x"}, "id", "must be a UUID"),
        ({"id": 7}, "id", "must be a UUID"),
        ({"day": "31.1."}, "day", "must be a date, as 2026-01-31"),
        ({"at": "now"}, "at", "must be a time, as 2026-01-31T12:00:00Z"),
        ({"hour": "noon"}, "hour", "must be a time of day, as 12:00:00"),
        ({"price": "dear"}, "price", "must be a decimal number"),
        ({"price": "NaN"}, "price", "must be a decimal number"),
        ({"price": [1]}, "price", "must be a decimal number"),
        ({"parts": {}}, "parts", "must be a list"),
        ({"parts": [{"name": "a"}, {}]}, "parts.1.name", "is missing"),
        ({"parts": [{"name": "a", "sise": 1}]}, "parts.0.sise", "is not one of its fields"),
        ({"by_name": []}, "by_name", "must be an object"),
        ({"by_name": {"q": 1}}, "by_name.q", "must be an object"),
        ({"pair": [1]}, "pair", "must be a list of 2"),
        ({"pair": [1, 2]}, "pair.1", "must be text"),
        ({"many": ["a"]}, "many.0", "must be a whole number"),
        ({"either": []}, "either", "must be a whole number or must be text"),
        ({"maybe": 1}, "maybe", "must be an object"),
        ({"address": {}}, "address.city", "is missing"),
        ({"address": {"city": "x", "zip": 1}}, "address.zip", "is not one of its fields"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_by_its_place(
    change: dict[str, Any], place: str, message: str
) -> None:
    assert problems(Everything, {**plain(everything()), **change}) == [(place, message)]


def test_all_problems_are_told_at_once() -> None:
    assert problems(Part, {"name": 1, "size": "x", "sise": 1}) == [
        ("sise", "is not one of its fields"),
        ("name", "must be text"),
        ("size", "must be a whole number"),
    ]


def test_a_union_tells_what_is_wrong_inside_the_one_that_fits_best() -> None:
    @dataclass
    class Box:
        what: int | Part

    assert problems(Box, {"what": {"name": 3}}) == [("what.name", "must be text")]


def test_an_object_is_needed_for_a_dataclass() -> None:
    assert problems(Part, [1]) == [("", "must be an object")]


def test_parts_of_a_set_must_be_able_to_be_in_one() -> None:
    @dataclass
    class Bag:
        things: set[Any]

    assert problems(Bag, {"things": [[1]]}) == [("things", "must have parts that can be in a set")]


def test_unknown_fields_are_ignored_by_workers_and_dropped_from_a_typed_dict() -> None:
    assert read(Part, {"name": "a", "newer": 1}) == Part("a")
    assert read(Address, {"city": "Rome", "newer": 1}) == {"city": "Rome"}


def test_a_dataclass_that_refuses_its_values_is_named_without_them() -> None:
    @dataclass
    class Choosy:
        amount: int

        def __post_init__(self) -> None:
            raise ValueError(f"{self.amount} is too much")

    assert problems(Choosy, {"amount": 4711}) == [("", "was refused by Choosy: ValueError")]


def test_the_name_of_a_field_that_came_with_the_data_is_redacted() -> None:
    ((place, _),) = problems(Part, {"name": "a", "password=hunter2": 1})

    assert "hunter2" not in place


def test_what_cannot_be_read_from_json_is_refused_with_its_place() -> None:
    @dataclass
    class Odd:
        blob: bytes

    @dataclass
    class Numbered:
        table: dict[int, str]

    @dataclass
    class Late:
        first: dataclasses.InitVar[int]

    for kind, text in ((Odd, "Odd.blob: bytes"), (Numbered, "no text"), (Late, "InitVar")):
        with pytest.raises(InvalidSettingError, match=text):
            codec_of(kind)


# -- pydantic and msgspec


class Inner(BaseModel):
    pin: SecretStr


class Debit(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    amount: int
    at: datetime
    card: SecretStr = SecretStr("4711-0815")
    raw: SecretBytes = SecretBytes(b"raw-secret")
    born: PydanticSecret[date] = PydanticSecret(date(2000, 1, 1))
    account: UUID = Field(alias="accountId")
    inner: list[Inner] = []
    by_name: dict[str, Inner] = {}
    words: set[SecretStr] = set()


class Paid(msgspec.Struct, rename="camel"):
    account_id: UUID
    amount: int
    parts: list[Paid] = []
    twin: Paid | None = None


def test_secrets_of_a_model_are_sent_and_not_their_asterisks() -> None:
    sent = Debit(
        amount=1, at=datetime(2026, 1, 1, tzinfo=UTC), accountId=uuid4(),
        inner=[Inner(pin=SecretStr("1234"))], by_name={"x": Inner(pin=SecretStr("5678"))},
        words={SecretStr("word")},
    )  # fmt: skip

    data = plain(sent)

    assert "*" not in str(data)
    assert (data["card"], data["raw"], data["born"]) == ("4711-0815", "raw-secret", "2000-01-01")
    assert (data["inner"], data["by_name"]) == ([{"pin": "1234"}], {"x": {"pin": "5678"}})
    assert read(Debit, data) == sent


def test_a_model_that_writes_its_secret_in_its_own_way_is_left_alone() -> None:
    class Hashing(BaseModel):
        pin: SecretStr

        @field_serializer("pin", when_used="json")
        def _short(self, pin: SecretStr) -> str:
            return "…" + pin.get_secret_value()[-1]

    assert plain(Hashing(pin=SecretStr("1234"))) == {"pin": "…4"}


def test_a_strict_model_takes_ids_and_times_as_they_are_in_json() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        id: UUID
        at: datetime

    value = Strict(id=uuid4(), at=datetime(2026, 1, 1, tzinfo=UTC))

    assert read(Strict, plain(value)) == value
    assert [place for place, _ in problems(Strict, {"id": 5, "at": "x"})] == ["id", "at"]


@pytest.mark.parametrize("extra", [None, "forbid"])
def test_unknown_fields_of_a_model_are_refused_by_senders_and_ignored_by_workers(
    extra: Any,
) -> None:
    class Model(BaseModel):
        model_config = ConfigDict(extra=extra) if extra else ConfigDict()
        name: str

    assert read(Model, {"name": "x", "newer": 1}) == Model(name="x")
    assert [place for place, _ in problems(Model, {"name": "x", "newer": 1})] == ["newer"]


def test_a_model_that_takes_any_field_takes_it_from_senders_too() -> None:
    class Free(BaseModel):
        model_config = ConfigDict(extra="allow")

    assert problems(Free, {"anything": 1}) == []
    assert read(Free, {"anything": 1}).anything == 1


def test_a_struct_comes_back_as_it_was() -> None:
    value = Paid(uuid4(), 5, parts=[Paid(uuid4(), 1)], twin=Paid(uuid4(), 2))

    assert read(Paid, plain(value)) == value
    assert problems(Paid, plain(value)) == []


def test_a_struct_tells_what_does_not_fit_without_values() -> None:
    data = plain(Paid(uuid4(), 5))

    assert problems(Paid, {**data, "amount": "hunter2"}) == [
        ("amount", "Expected `int`, got `str`")
    ]
    nested = {**data, "parts": [{**data, "newer": 1}], "twin": {**data, "other": 1}}
    assert [place for place, _ in problems(Paid, {**nested, "more": 2})] == [
        "more", "parts.0.newer", "twin.other",
    ]  # fmt: skip
    assert read(Paid, nested).amount == 5


def test_models_may_be_in_dataclasses() -> None:
    @dataclass
    class Envelope:
        paid: Paid
        inner: Inner | None = None

    value = Envelope(Paid(uuid4(), 1), Inner(pin=SecretStr("99887")))

    assert read(Envelope, plain(value)) == value
    assert problems(Envelope, {"paid": {}})[0][0].startswith("paid")


def test_an_error_of_a_sender_names_five_problems_and_no_value() -> None:
    with pytest.raises(InvalidPayloadError, match="data is not a Everything: text is missing"):
        codec_of(Everything).check({})


def test_five_fields_are_decoded_in_ten_microseconds() -> None:
    @dataclass
    class Five:
        account: UUID
        amount: int
        currency: str
        at: datetime
        memo: str | None = None

    data = plain(Five(uuid4(), 5, "EUR", datetime(2026, 1, 1, tzinfo=UTC), "x"))
    reader = codec_of(Five).read
    assert reader is not None

    # The best of many: other processes of the machine only make it slower.
    seconds = min(timeit.repeat(lambda: reader(data), number=500, repeat=20)) / 500

    # With a tracer, as for coverage, each line takes many times as long.
    assert seconds < (10e-6 if sys.gettrace() is None else 100e-6)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_no_data_makes_a_type_fail_in_another_way_than_saying_where(data: Any) -> None:
    for kind in (Everything, Address, Debit, Paid):
        for value in (data, {**plain(everything()), "parts": data, "either": data}):
            assert all(isinstance(place, str) for place, _ in problems(kind, value))
