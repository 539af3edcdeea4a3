"""The bus in Django's admin: to look at, and to operate what is parked.

Rows are read-only. Actions are the operator's verbs of the bus, with the user as the operator: they
need the permission `commandbus.operate`, and stand in the audit. Payloads are masked, and need
`commandbus.view_payload`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db import transaction
from django.db.models import Q
from django.utils.html import format_html

from commandbus.django import bus
from commandbus.django.admin_lists import (
    MAX_COUNTED,
    FirstRows,
    OneOrder,
    ShortPaginator,
    domains,
    with_domains,
)
from commandbus.django.conf import configuration
from commandbus.django.models import AuditEvent, Batch, Command, FailureGroup, ParkedCommand
from commandbus.errors import CommandBusError
from commandbus.troubleshooting.model import BulkFilter

#: Failure groups up to this size are done at once; the workers do larger ones.
MAX_AT_ONCE = 2_000


class ReasonForm(ActionForm):
    """Beside the choice of an action."""

    reason = forms.CharField(required=False, label="Reason or note", max_length=500)


class LookOnly(admin.ModelAdmin):
    """Nothing can be added, changed or deleted."""

    show_full_result_count = False
    paginator = ShortPaginator
    list_per_page = 50
    list_display_links: tuple[str, ...] | None = None
    sortable_by: tuple[str, ...] = ()
    #: Whether the index of the key begins with the domain, which an id of the admin has not.
    has_domain_first = False

    def get_changelist(self, request: Any, **kwargs: Any) -> type[OneOrder]:
        """In one order."""
        del request, kwargs
        return OneOrder

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        """Only the filters that are shown: others may read the whole table."""
        del value, request
        return lookup.partition("__")[0] in {name for name, _ in self.list_filter}

    def response_action(self, request: Any, queryset: Any, **more: Any) -> Any:
        """Act on what was chosen; from Django 6.1 on it says where, too."""
        chosen = with_domains(queryset) if self.has_domain_first else queryset
        return super().response_action(request, chosen, **more)

    def get_queryset(self, request: Any) -> Any:
        """On the database of the bus."""
        return super().get_queryset(request).using(configuration().database)

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002
        """Commands are sent, not added."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """The verbs of the bus change them."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Retention removes them."""
        return False

    def has_operate_permission(self, request: Any) -> bool:
        """Who sees the actions."""
        return bool(request.user.has_perm("commandbus.operate"))

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        """One row; of an id that two domains have, the newer."""
        del from_field
        field = self.model._meta.pk
        rows = self.get_queryset(request)
        try:
            wanted = field.to_python(object_id)
            return (with_domains(rows) if self.has_domain_first else rows).filter(pk=wanted).first()
        except Exception:  # noqa: BLE001  (what is no id at all is not found)
            return None

    def log_change(self, *_: Any, **__: Any) -> None:
        """The audit of the bus has who did what."""


@admin.register(Command)
class CommandAdmin(LookOnly):
    """Commands, newest first; a PENDING one can be canceled."""

    list_display = ("command_id", "domain", "command_type", "status", "attempts", "created_at")
    list_display_links = ("command_id",)  # to its payload and its events
    has_domain_first = True
    list_filter = (("status", FirstRows),)
    search_fields = ("command_id__exact", "correlation_id__exact", "batch_id__exact")
    search_help_text = "The id of a command, a correlation or a batch"
    action_form = ReasonForm
    actions = ("cancel_selected",)
    readonly_fields = ("payload", "events")

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """By an id only: texts have no index."""
        del request
        if not search_term.strip():
            return queryset, False
        try:
            wanted = UUID(search_term.strip())
        except ValueError:
            return queryset.none(), False
        own = Q(domain__in=domains(), command_id=wanted)
        ids = own | Q(correlation_id=wanted) | Q(batch_id=wanted)
        return queryset.filter(ids), False

    def get_fields(self, request: Any, obj: Any = None) -> list[str]:
        """All columns, the events, and the payload for those who may see it."""
        shown = [field.name for field in self.model._meta.fields]
        if request.user.has_perm("commandbus.view_payload"):
            shown.append("payload")
        del obj
        return [*shown, "events"]

    @admin.display(description="Payload, secrets masked")
    def payload(self, obj: Any) -> str:
        """The data of the command."""
        found = bus.search.payload(obj.domain, obj.command_id)
        return str(format_html("<pre>{}</pre>", json.dumps(found, indent=2, ensure_ascii=False)))

    @admin.display(description="Events")
    def events(self, obj: Any) -> str:
        """Its life."""
        trail = bus.get_audit_trail(obj.domain, obj.command_id, limit=100)
        lines = "\n".join(
            f"{event.ts:%Y-%m-%d %H:%M:%S}  {event.event_type}  {event.actor or ''}"
            for event in trail
        )
        return str(format_html("<pre>{}</pre>", lines))

    @admin.action(description="Cancel, with a reason (PENDING only)", permissions=["operate"])
    def cancel_selected(self, request: Any, queryset: Any) -> None:
        """Cancel what nobody has begun."""
        if reason := _reason(request):
            _each(request, queryset, "canceled", lambda one, who: bus.cancel(
                one.domain, one.command_id, reason, operator=who))  # fmt: skip


@admin.register(ParkedCommand)
class ParkedCommandAdmin(LookOnly):
    """What waits for an operator, longest first."""

    list_display = ("command_id", "domain", "command_type", "reason", "parked_at", "fingerprint")
    list_filter = (("reason", FirstRows),)
    action_form = ReasonForm
    actions = ("retry_selected", "cancel_selected", "complete_selected")

    @admin.action(description="Retry", permissions=["operate"])
    def retry_selected(self, request: Any, queryset: Any) -> None:
        """Send them again."""
        _each(request, queryset, "sent again", lambda one, who: bus.operator_retry(
            one.domain, one.command_id, operator=who))  # fmt: skip

    @admin.action(description="Cancel, with a reason", permissions=["operate"])
    def cancel_selected(self, request: Any, queryset: Any) -> None:
        """End them as CANCELED."""
        if reason := _reason(request):
            _each(request, queryset, "canceled", lambda one, who: bus.operator_cancel(
                one.domain, one.command_id, reason, operator=who))  # fmt: skip

    @admin.action(description="Complete, with a note", permissions=["operate"])
    def complete_selected(self, request: Any, queryset: Any) -> None:
        """End them as COMPLETED; the note is their result."""
        if note := _reason(request):
            _each(request, queryset, "completed", lambda one, who: bus.operator_complete(
                one.domain, one.command_id, {"note": note}, operator=who))  # fmt: skip


@admin.register(FailureGroup)
class FailureGroupAdmin(LookOnly):
    """What is parked, by cause. The counts are kept by the bus."""

    has_domain_first = True
    list_display = (
        "domain", "command_type", "error_code", "parked_count", "message", "first_seen",
        "last_seen",
    )  # fmt: skip
    action_form = ReasonForm
    actions = ("retry_group", "cancel_group", "complete_group")

    def get_queryset(self, request: Any) -> Any:
        """Only those that have something parked."""
        return super().get_queryset(request).filter(parked_count__gt=0)

    @admin.action(description="Retry the whole group", permissions=["operate"])
    def retry_group(self, request: Any, queryset: Any) -> None:
        """Send all of it again."""
        _groups(request, queryset, "retry")

    @admin.action(description="Cancel the whole group, with a reason", permissions=["operate"])
    def cancel_group(self, request: Any, queryset: Any) -> None:
        """End all of it as CANCELED."""
        if reason := _reason(request):
            _groups(request, queryset, "cancel", reason=reason)

    @admin.action(description="Complete the whole group, with a note", permissions=["operate"])
    def complete_group(self, request: Any, queryset: Any) -> None:
        """End all of it as COMPLETED; the note is the result."""
        if note := _reason(request):
            _groups(request, queryset, "complete", result_data={"note": note})


@admin.register(Batch)
class BatchAdmin(LookOnly):
    """Batches, newest first."""

    list_display = (
        "batch_id", "domain", "name", "status", "total_count", "completed_count", "failed_count",
        "in_troubleshooting_count", "created_at",
    )  # fmt: skip
    list_filter = (("status", FirstRows),)


@admin.register(AuditEvent)
class AuditEventAdmin(LookOnly):
    """The audit, newest first."""

    list_display = ("audit_id", "ts", "event_type", "domain", "command_id", "actor")


# -- acting


def _each(request: Any, queryset: Any, done: str, act: Callable[[Any, str], object]) -> None:
    """Act on each row by itself: one that is refused stays as it is, and the others go on."""
    rows = list(queryset[:MAX_COUNTED])  # "all" are as many as are counted
    # A row is chosen by its id alone, and two domains may have the same.
    several = {key for key, number in Counter(row.pk for row in rows).items() if number > 1}
    acted, refused = 0, []
    for row in rows:
        if row.pk in several:
            refused.append(f"{row.pk} is an id of several domains; use `manage.py commandbus tsq`")
            continue
        try:
            with _savepoint():
                act(row, actor_of(request))
            acted += 1
        except CommandBusError as error:
            refused.append(str(error))
    if acted:
        messages.success(request, f"{acted} commands were {done}")
    _tell(request, refused)


def _groups(request: Any, queryset: Any, verb: Any, **arguments: Any) -> None:
    refused = []
    for group in queryset[:MAX_COUNTED]:
        chosen = BulkFilter(group.domain, group=group.fingerprint)
        try:
            with _savepoint():
                started = bus.bulk.start(
                    verb, chosen, operator=actor_of(request), everything=True, **arguments
                )
            if started.total <= MAX_AT_ONCE:
                started = bus.bulk.run(started.operation_id)
            messages.success(
                request,
                f"{group}: {verb} of {started.total} commands, {started.done} are done"
                + ("" if started.total <= MAX_AT_ONCE else "; the workers do the rest"),
            )
        except CommandBusError as error:
            refused.append(str(error))
    _tell(request, refused)


def _savepoint() -> Any:
    """A request may be one transaction (ATOMIC_REQUESTS), which a refusal must not end."""
    return transaction.atomic(using=configuration().database)


def _tell(request: Any, refused: Iterable[str]) -> None:
    for text in list(refused)[:10]:
        messages.error(request, text)


def _reason(request: Any) -> str | None:
    text = str(request.POST.get("reason", "")).strip()
    if not text:
        messages.error(request, "Say why, in the field beside the action")
    return text or None


def actor_of(request: Any) -> str:
    """Who acts, as the audit shows it."""
    return str(request.user.get_username())
