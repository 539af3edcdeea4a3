"""Views: what the service shows. A view is made from the data class that it shows, so that a field
is written once; it hides what is not for clients, and adds what only the service knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Generic, Self, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

ViewType = TypeVar("ViewType", bound="View")
Item = TypeVar("Item")


class View(BaseModel):
    """A response body."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, source: Any, **more: Any) -> Self:
        """The view of a data class; `more` is what the data class does not have."""
        values = {spec.name: getattr(source, spec.name) for spec in fields(source)}
        return cls.model_validate(values | more)


def view_of(
    model: type[Any],
    *,
    hide: tuple[str, ...] = (),
    rename: Mapping[str, str] | None = None,
    describe: Mapping[str, str] | None = None,
) -> Callable[[type[ViewType]], type[ViewType]]:
    """Give the decorated view the fields of a data class.

    `hide` names fields that clients must not see, `rename` gives a field another name, `describe`
    has the descriptions of fields by the names that clients see. What the decorated class declares
    itself is added, or replaces the field of that name.
    """
    hints = get_type_hints(model)
    known = [spec.name for spec in fields(model)]
    renamed, described = dict(rename or {}), dict(describe or {})
    unknown = {*hide, *renamed} - set(known)
    if unknown:
        raise TypeError(f"{model.__name__} has no {', '.join(sorted(unknown))}")

    def decorate(view: type[ViewType]) -> type[ViewType]:
        shown: dict[str, Any] = {}
        for name in known:
            if name in hide:
                continue
            other = renamed.get(name, name)
            info = Field(
                description=described.pop(other, None),
                validation_alias=name if other != name else None,
            )
            shown[other] = (hints[name], info)
        if described:
            raise TypeError(f"{view.__name__} has no {', '.join(sorted(described))}")
        own = {name: (info.annotation, info) for name, info in view.model_fields.items()}
        return create_model(
            view.__name__,
            __base__=view.__bases__,
            __doc__=view.__doc__,
            __module__=view.__module__,
            **(shown | own),
        )

    return decorate


class ListView(View, Generic[Item]):
    """All items of a listing that has one page only."""

    items: list[Item]


class PageView(ListView[Item], Generic[Item]):
    """Some items of a listing."""

    next_cursor: str | None = Field(
        description="The `cursor` of the next page; null: this is the last one."
    )


class SearchPageView(PageView[Item], Generic[Item]):
    """Some items of a search."""

    searched_to: datetime | None = Field(
        description="How far the search has looked, if it stopped before the page was full."
    )
