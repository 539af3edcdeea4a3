"""What all requests have in common: names, pages, forms."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, TypeVar

from fastapi import Depends, Path, Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    model_validator,
)

from commandbus.names import MAX_DOMAIN_LENGTH, MAX_TYPE_LENGTH, check_text

#: Items that one page may have.
MAX_PAGE = 200
#: Fields that one object of a form may have. Each unknown one would become an error of its own.
MAX_FIELDS = 100

DOMAIN_PATTERN = "^[a-z](?:_?[a-z0-9])*_?$"
TYPE_PATTERN = "^[A-Za-z][A-Za-z0-9_.:-]*$"

DomainName = Annotated[
    str,
    Field(
        pattern=DOMAIN_PATTERN,
        max_length=MAX_DOMAIN_LENGTH,
        description="a-z, 0-9 and single underscores, a letter first.",
        examples=["payments"],
    ),
]
TypeName = Annotated[
    str, Field(pattern=TYPE_PATTERN, max_length=MAX_TYPE_LENGTH, examples=["DebitAccount"])
]


def _says_something(text: str) -> str:
    return check_text(text, "it")


Reason = Annotated[
    str,
    # Here and not only in the library: an action whose reason is refused must not be done.
    AfterValidator(_says_something),
    Field(
        min_length=1,
        max_length=2_000,
        description="Why, for the audit. Secrets in it are masked.",
        examples=["ordered by mistake"],
    ),
]
#: In the query: a body of DELETE has no meaning, and proxies drop it.
Why = Annotated[Reason | None, Query(max_length=1_000, description="Why; it is in the audit.")]
#: A payload or a result, checked by the library: JSON objects of bounded size and depth.
JsonObject = Annotated[dict[str, Any], Field(examples=[{"account_id": 1, "amount_cents": 500}])]


def written(value: Any) -> Any:
    """A time is written as a text: a number of seconds would be understood too."""
    if value is not None and not isinstance(value, str):
        raise ValueError("write it as a text, like 2026-05-01T10:00:00Z")
    return value


#: Of a body: `true` is no 1, and "5" is no 5.
Whole = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]

DomainPath = Annotated[DomainName, Path()]
DomainQuery = Annotated[
    DomainName | None,
    Query(description="Only this domain. Needed if the caller is limited to several."),
]
TypeQuery = Annotated[TypeName | None, Query(description="Only this command type.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Items on the page.")]
Moment = Annotated[AwareDatetime | None, Query(examples=["2026-05-01T10:00:00Z"])]


class Paging(TypedDict):
    """Which page of a listing: the arguments of every `page` of the bus."""

    limit: int
    cursor: str | None


def _paging(size: int) -> Any:
    def read(
        limit: Limit = size,
        cursor: Annotated[
            str | None,
            Query(max_length=8_000, description="`next_cursor` of the page before, unchanged."),
        ] = None,
    ) -> Paging:
        return Paging(limit=limit, cursor=cursor)

    return Depends(read)


#: `paging: PageOf50` in the signature of a listing; the number is the default of `limit`.
PageOf50 = Annotated[Paging, _paging(50)]
PageOf100 = Annotated[Paging, _paging(100)]


Element = TypeVar("Element")
#: A list in a form: only the first wrong element is described, for there may be 100,000 of them.
ListOf = Annotated[list[Element], FailFast()]


class Form(BaseModel):
    """A request body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MAX_FIELDS:
            raise ValueError(f"it has more than {MAX_FIELDS} fields")
        return given


def example(**values: Any) -> ConfigDict:
    """The `model_config` of a form or view with an example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [values]})
