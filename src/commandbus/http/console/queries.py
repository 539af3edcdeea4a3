"""Filters in the address. A form without a script sends its empty fields too: they mean nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import AfterValidator, BeforeValidator

from commandbus.http.schemas.base import DomainQuery, TypeQuery
from commandbus.models import CommandStatus
from commandbus.troubleshooting import BulkOutcome, BulkStatus


def _filled(value: Any) -> Any:
    return None if value == "" else value


def _zoned(value: datetime | None) -> datetime | None:
    """A field without a script has no zone: it is filled in by the server's clock, in UTC."""
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


#: Beside the type of a filter: an empty field is none.
Blank = BeforeValidator(_filled)

DomainFilter = Annotated[DomainQuery, Blank]


TypeFilter = Annotated[TypeQuery, Blank]
StatusFilter = Annotated[CommandStatus | None, Query(), Blank]
BulkStatusFilter = Annotated[BulkStatus | None, Query(), Blank]
OutcomeFilter = Annotated[BulkOutcome | None, Query(), Blank]
CodeFilter = Annotated[str | None, Query(max_length=200), Blank]
TextFilter = Annotated[str | None, Query(max_length=200), Blank]
IdFilter = Annotated[UUID | None, Query(), Blank]
MomentFilter = Annotated[datetime | None, Query(), Blank, AfterValidator(_zoned)]
#: A choice of a form: without it, empty.
ChoiceFilter = Annotated[bool | None, Query(), Blank]
CursorQuery = Annotated[str | None, Query(max_length=1_000), Blank]
