"""Lists of the admin that stay quick however many rows there are.

What would read a whole table is bounded or left out: a count of all rows, the values of a column,
an order or a filter that has no index, and an id without its domain.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.utils.functional import cached_property

from commandbus.django.conf import configuration
from commandbus.django.models import Command

#: Rows that are counted; a list may be longer, and its first pages are what is looked at.
MAX_COUNTED = 5_000
#: Rows among which a filter looks: there is no index on what changes.
MAX_LOOKED_AT = 100_000


class ShortPaginator(Paginator):
    """Counts no further than MAX_COUNTED: a count of all rows of a large table takes minutes."""

    @cached_property
    def count(self) -> int:
        """How many rows there are to turn pages in."""
        return len(self.object_list.order_by().values_list("pk")[:MAX_COUNTED])


class FirstRows(admin.ChoicesFieldListFilter):
    """A filter among the first rows of a list, which are the newest, or wait longest."""

    def __init__(self, field: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(field, *arguments, **named)
        self.title = f"{field.verbose_name}, of the first {MAX_LOOKED_AT:,}"

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Those of one value."""
        if not self.lookup_val:
            return queryset
        order = queryset.model._meta.ordering[0]
        column = order.removeprefix("-")
        edge = queryset.order_by(order).values_list(column, flat=True)[MAX_LOOKED_AT:].first()
        if edge is not None:
            side = "gte" if order.startswith("-") else "lte"
            queryset = queryset.filter(**{f"{column}__{side}": edge})
        return super().queryset(request, queryset)


class OneOrder(ChangeList):
    """A list in the order that has an index."""

    def get_ordering(self, request: Any, queryset: Any) -> list[str]:
        """Always that of the model."""
        del request, queryset
        return [*self.model._meta.ordering]

    def get_ordering_field_columns(self) -> dict[int, str]:
        """No column is marked as the one that was chosen."""
        return {}


def with_domains(queryset: Any) -> Any:
    """The same rows, so that the index of domain and id can be used."""
    return queryset.filter(domain__in=domains())


def domains() -> list[str]:
    """The domains that have commands: one look into an index for each."""
    found: list[str] = []
    rows = Command.objects.using(configuration().database).order_by("domain")
    while next_one := rows.filter(domain__gt=found[-1] if found else "")[:1].values("domain"):
        found.append(next_one[0]["domain"])
    return found
