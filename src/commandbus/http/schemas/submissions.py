"""The forms of submissions: read as plain JSON, described by the types that were declared.

Errors in items are reported after repeats and limits were checked, and what is stored is exactly
what the client wrote. So the framework checks only the frame; governance checks the items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Union
from uuid import UUID

from fastapi import Header
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    create_model,
)
from pydantic.errors import PydanticUserError

from commandbus.governance.types import BatchType
from commandbus.http.schemas.base import Form, Reason, example


def _unquoted(value: Any) -> Any:
    # The header is a structured string by its draft; most clients send it without quotes.
    return value.strip('"') if isinstance(value, str) else value


#: The header Idempotency-Key.
RequestKey = Annotated[
    UUID | None,
    BeforeValidator(_unquoted),
    Header(description="The same as request_id, for clients that have it: a UUID."),
]


class Submission(Form):
    """What all submissions have."""

    #: The field that says which batch type is meant; None: there is only one at the path.
    key: ClassVar[str | None] = None

    items: list[Any]
    request_id: UUID | None = Field(
        None, description="Chosen by the client: a repeat gets the batch that is there."
    )
    reason: Reason | None = None


class OperationSubmission(Submission):
    """Where several types share a path."""

    key = "operation"
    operation: str = Field(max_length=64)


class AnySubmission(Submission):
    """A batch of any type."""

    key = "batch_type"
    batch_type: str = Field(max_length=64)


def submission_form(form: type[Submission], types: Sequence[BatchType]) -> Any:
    """The annotation of a body that is read as `form` and described as one of these types."""
    kinds = [_described(each, form) for each in types]
    choice: Any = kinds[0]
    if len(kinds) > 1:
        # Made from a list that is known only now, which the operator | cannot do.
        choice = Annotated[Union[tuple(kinds)], Field(discriminator=form.key)]  # noqa: UP007
    described = _DescribedAs(TypeAdapter(choice).core_schema)
    # A function between them, or the description would be written into the form's own schema.
    return Annotated[form, AfterValidator(_same), described]


def _same(form: Submission) -> Submission:
    return form


def _described(batch_type: BatchType, form: type[Submission]) -> Any:
    items = list[_item_of(batch_type)]  # type: ignore[misc,valid-type]
    size = Field(min_length=1, max_length=batch_type.max_size)
    fields: dict[str, Any] = {"items": (items, size)}
    values: dict[str, Any] = {}
    if form.key is not None:
        values[form.key] = batch_type.operation if form.key == "operation" else batch_type.name
        fields[form.key] = (Literal[values[form.key]], Field())
    name = f"{'SubmitAny' if form is AnySubmission else 'Submit'}_{batch_type.name}"
    made = create_model(name, __base__=Submission, __doc__=batch_type.description, **fields)
    made.model_config |= example(**values, items=[dict(batch_type.example or {})])
    made.model_rebuild(force=True)
    return made


def item_schema(batch_type: BatchType) -> dict[str, Any]:
    """JSON Schema of one item, complete in itself."""
    adapter: TypeAdapter[Any] = TypeAdapter(_item_of(batch_type))
    return adapter.json_schema()


class _DescribedAs:
    """Validates as what it annotates, and is described as something else."""

    def __init__(self, description: Any, *, is_closed: bool = False) -> None:
        self._description = description
        self._is_closed = is_closed

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler(source)

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        del schema
        described = handler(self._description)
        found = handler.resolve_ref_schema(described)
        if self._is_closed and "properties" in found:
            found["additionalProperties"] = False
        return described


def _item_of(batch_type: BatchType) -> Any:
    """Any JSON object, described by the type that it must fit."""
    payload_type: Any = batch_type.payload_type or dict[str, Any]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(payload_type)
        adapter.json_schema()
    except PydanticUserError:
        # JSON Schema cannot describe this type. Governance checks it all the same.
        adapter = TypeAdapter(dict[str, Any])
    # Governance refuses unknown fields of a data class or a TypedDict; a model says it itself.
    is_closed = not hasattr(payload_type, "model_fields")
    return Annotated[dict[str, Any], _DescribedAs(adapter.core_schema, is_closed=is_closed)]
