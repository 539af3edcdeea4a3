"""Marks on the types of payloads: which fields are secret, and whether data fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NotRequired, Optional, TypedDict

import pytest
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, field_validator, model_validator

from commandbus import Secret
from commandbus.errors import InvalidPayloadError, InvalidSettingError
from commandbus.handlers.registry import HandlerRegistry
from commandbus.privacy.secrets import check_payload_type, secret_keys
from commandbus.typed.codec import check_fits, misfits


@dataclass
class Card:
    number: Annotated[str, Secret]
    brand: str = ""
    twin: Card | None = None


@dataclass
class Payment:
    amount: int
    fee: float = 0.0
    is_urgent: bool = False
    memo: str | None = None
    pin: str = field(default="", metadata={"secret": True})
    cards: list[Card] = field(default_factory=list)
    by_name: dict[str, Card] | None = None
    optional: Annotated[str, Secret()] | None = None


class Letter(TypedDict):
    to: str
    Code_Word: NotRequired[Annotated[str, Secret]]


class SecretStr:
    """As pydantic's, by its name and its module."""


SecretStr.__module__ = "pydantic.types"


class _Field:
    def __init__(self, alias: str | None) -> None:
        self.alias = alias
        self.validation_alias = None


class _ValidationError(ValueError):
    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": ("card", 0), "type": "int_parsing", "input": "hunter2"}]


class Model:
    """What a pydantic model can do, as far as we ask for it."""

    model_fields: ClassVar = {"key": _Field("theKey"), "name": _Field(None)}
    key: SecretStr
    name: str

    @classmethod
    def model_validate(cls, data: Any) -> None:
        if data.get("key") != "fits":
            raise _ValidationError("key: hunter2 is wrong")


class Bare(Model):
    @classmethod
    def model_validate(cls, data: Any) -> None:
        raise ValueError("hunter2")


def test_the_marked_fields_are_found_at_every_depth_and_in_any_form() -> None:
    assert secret_keys(Payment) == {"pin", "number", "optional"}
    assert secret_keys(Letter) == {"code_word"}
    assert secret_keys(Model) == {"key", "the_key"}


def test_a_type_that_refers_to_itself_ends() -> None:
    assert secret_keys(Card) == {"number"}


@pytest.mark.parametrize(
    "data",
    [
        {"amount": 1},
        {"amount": 1, "fee": 2, "is_urgent": True, "memo": None},
        {"amount": 1, "fee": 2.5, "cards": [{"number": "1"}]},
    ],
)
def test_data_that_fits_is_accepted(data: dict[str, Any]) -> None:
    check_fits(Payment, data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "amount is missing"),
        ({"amount": "hunter2"}, "amount must be a whole number"),
        ({"amount": True}, "amount must be a whole number"),
        ({"amount": 1, "fee": "hunter2"}, "fee must be a number"),
        ({"amount": 1, "is_urgent": 1}, "is_urgent must be true or false"),
        ({"amount": 1, "pin": 7}, "pin must be text"),
        ({"amount": 1, "ammount": "hunter2"}, "ammount is not one of its fields"),
    ],
)
def test_data_that_does_not_fit_is_refused_without_its_values(
    data: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidPayloadError, match=problem) as caught:
        check_fits(Payment, data)
    assert "hunter2" not in str(caught.value)


def test_a_typed_dict_and_a_model_refuse_too() -> None:
    check_fits(Letter, {"to": "x"})
    with pytest.raises(InvalidPayloadError, match="to is missing"):
        check_fits(Letter, {})
    check_fits(Model, {"key": "fits"})
    with pytest.raises(InvalidPayloadError, match=r"card\.0: int_parsing") as caught:
        check_fits(Model, {"key": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidPayloadError, match="not a Bare: ValueError"):
        check_fits(Bare, {})


@dataclass
class Broken:
    field: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("wrong", [str, 5, dict, Broken, Payment(1)])
def test_what_is_no_type_of_a_payload_is_refused_at_registration(wrong: Any) -> None:
    with pytest.raises(InvalidSettingError, match="payload_type of bank/Pay"):
        check_payload_type(wrong, "bank/Pay")
    registry = HandlerRegistry()
    with pytest.raises(InvalidSettingError):
        registry.register("bank", "Pay", lambda c, x: None, payload_type=wrong)
    assert registry.find("bank", "Pay") is None


def test_the_registry_knows_the_secret_keys_of_its_types() -> None:
    registry = HandlerRegistry()
    registry.register("bank", "Pay", lambda c, x: None, payload_type=Payment)
    registry.register("bank", "Other", lambda c, x: None)

    assert registry.secret_keys("bank") == {"Pay": {"pin", "number", "optional"}}
    assert registry.secret_keys("shop") == {}


class Checking(BaseModel):
    """A real model, with a validator that quotes what it was given."""

    name: str
    size: int = Field(gt=0)

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name != "known":
            raise ValueError(f"{name} is not known")
        return name


def test_misfits_say_where_and_what_and_never_with_which_value() -> None:
    assert misfits(Checking, {"name": "known", "size": 1}) == []
    assert misfits(Checking, {"name": "hunter2", "size": 0}) == [
        ("name", "Value error, [REDACTED] is not known"),
        ("size", "Input should be greater than 0"),
    ]
    assert misfits(Payment, {}) == [("amount", "amount is missing")]
    assert misfits(Checking, {"size": 1}) == [("name", "Field required")]


class Quoting(BaseModel):
    """A model whose validator repeats all that it was given."""

    names: list[str] = []
    number: int = 0
    flag: bool = False
    nothing: str | None = None

    @model_validator(mode="after")
    def _refuse(self) -> Quoting:
        raise ValueError(f"{self.names} {self.number} {self.flag} {self.nothing} " + "x" * 300)


def test_every_value_of_three_letters_is_masked_wherever_it_stands() -> None:
    data = {"names": ["abc", "de"], "number": 123, "flag": True, "nothing": None}
    ((place, text),) = misfits(Quoting, data)
    assert place == ""
    assert text.startswith("Value error, ['[REDACTED]', 'de'] [REDACTED] True None xxx")
    assert (len(text), text[-1]) == (200, "…")


class LongWinded(Model):
    @classmethod
    def model_validate(cls, data: Any) -> None:
        class _LongError(ValueError):
            def errors(self) -> list[dict[str, Any]]:
                return [{"loc": ("p" * 500,), "type": "t" * 500}]

        raise _LongError


def test_places_and_reasons_have_two_hundred_letters_at_most() -> None:
    ((place, text),) = misfits(LongWinded, {})
    assert (place, text) == ("p" * 199 + "…", "t" * 199 + "…")
    with pytest.raises(InvalidPayloadError) as caught:
        check_fits(LongWinded, {})
    assert str(caught.value) == "data is not a LongWinded: " + "p" * 199 + "…"


def test_the_name_of_an_unknown_field_has_sixty_letters_at_most() -> None:
    ((place, text),) = misfits(Card, {"number": "1", "n" * 100: 1})
    assert place == "n" * 59 + "…"
    assert text == f"{place} is not one of its fields"


def test_at_most_five_problems_are_told() -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        check_fits(Card, {"number": "1", **{f"n{n}": 1 for n in range(6)}})
    assert str(caught.value).count("is not one of its fields") == 5


@dataclass
class Wallet:
    spare: Optional[Card] = None  # noqa: UP045  (the older form is a hint of another kind)
    total: int = field(init=False, default=0)


def test_the_older_form_of_an_optional_field_is_followed_too() -> None:
    assert secret_keys(Wallet) == {"number"}
    check_fits(Wallet, {})


class Door(BaseModel):
    """Types of pydantic that are not secret, and another's type with a secret name."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    address: AnyUrl
    lock: _Lock


class _Lock:
    pass


_Lock.__name__ = "SecretStr"


def test_only_the_secret_types_of_pydantic_are_marks() -> None:
    assert secret_keys(Door) == frozenset()
