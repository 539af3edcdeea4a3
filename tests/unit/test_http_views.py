"""Views are made from data classes: what they show, hide, rename, add and refuse."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest

from commandbus.http import schemas
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


# -- what clients see today

_COMMAND = (
    "domain command_id command_type status attempts max_attempts lease_expires_at last_error_type "
    "last_error_code last_error_msg created_at updated_at reply_queue correlation_id batch_id "
    "leased_by deliver_at expires_at priority ordering_key limit_key due_at waiting_for "
    "history_since"
)
_TICKET = (
    "batch_id domain batch_type child_count success_count failed_count pending_count "
    "canceled_count status reason created_by created_at updated_at completed_at requires_approval "
    "decided_by decided_at decision_reason request_id content_digest edit_count expires_at "
    "status_url links"
)
#: Every view with every field. None shows an API token, the queue of commands or a lease epoch.
SHOWN_FIELDS = {
    "DomainOverviewView": "domain ready delayed waiting about due_seconds parked workers "
    "silent concurrency in_flight stuck is_paused paused_until later rates seconds_to_drain",
    "LoadItem": "batch_id domain source start status rows_committed rows_total rows_dispatched "
    "checkpoints_done rate error created_at checkpoint_at idle_seconds name "
    "created_by batch_status is_open is_interrupted resume_command",
    "RatesView": "as_of in_rate out_rate completed_rate failed_rate parked_rate retried_rate "
    "hour_from in_hour out_hour lost_hour",
    "TrendView": "domain fingerprint hours",
    "WorkerView": "worker_id domain concurrency in_flight stuck stuck_types is_idle version "
    "started_at heartbeat_at heartbeat_seconds completed failed parked retried "
    "process is_silent",
    "WorkersView": "items has_more",
    "CheckRunView": "run_id domain is_fix actor reason started_at finished_at error is_running "
    "is_healthy findings since repairs",
    "ChoreView": "name started_at every_seconds ended_at has_failed told domain",
    "DatabaseSettingView": "name value updated_at",
    "DoctorView": "last newer is_running fixable well_since",
    "FindingView": "code severity domain found examples meaning advice can_fix",
    "IdentifiedView": "kind domain status",
    "PersonEventView": "audit_id first_id domain event_type actor ts first_ts events "
    "command_id batch_id details",
    "RetentionView": "domain kind updated_by updated_at keep_seconds",
    "SealStateView": "seal_number sealed_to sealed_at key_id unsealed has_more oldest_unsealed_at "
    "verified",
    "SettingsView": "version schema_version server_version database of_database of_process "
    "of_service",
    "VerificationView": "verified_at is_intact window_seconds rows seals findings",
    "Canceled": "count canceled requested",
    "Accepted": "domain command_id command_type status is_repeat outcome status_url",
    "Acknowledged": "acknowledged lost",
    "AuditEventView": "audit_id domain command_id event_type ts details batch_id actor",
    "BatchCreated": "batch_id domain command_ids status_url",
    "BatchTypeView": "name description domain permission max_size max_attempts requires_approval "
    "submit_url operation item_schema example",
    "LoadView": "batch_id domain source row_format start status checkpoint_size rows_committed "
    "checkpoints_done rows_dispatched last_error created_at updated_at actions options",
    "LoadResultView": "status batch_id checkpoints tasks_committed failed_checkpoint tasks_failed "
    "recovery_possible error line",
    "BatchView": "batch_id domain name custom_data status total_count completed_count failed_count "
    "canceled_count in_troubleshooting_count created_at started_at completed_at history_since",
    "BulkItemView": "item_no command_id outcome detail acted_at",
    "BulkMatchView": "fingerprint command_type error_class error_code message matched",
    "BatchErrorView": "code parked failed sample_command_id sample_message",
    "BatchErrorsView": "codes is_complete",
    "BatchPaceView": "recent_per_second overall_per_second seconds_left_low seconds_left_high",
    "BatchStandingView": "sentence pace errors",
    "LifeStepView": "event seconds_since_previous seconds_since_sent attempt",
    "AttemptView": "number worker started_at ended_at outcome error_code error_message stack",
    "FormerPayloadView": "replaced_at replaced_by payload",
    "ShownErrorView": "code message error_class",
    "ShownReplyView": "state outcome completed_at data error meta",
    "LifeFactsView": "fingerprint parked_at has_payload has_edit cancel_requested_at "
    "cancel_requested_by worker_seen_at reply traceparent",
    "LifeView": "command sentence steps left_out attempts actions facts siblings has_more_siblings",
    "LookView": "user_id digest first_at last_at",
    "RejectedView": "ticket changes child_count",
    "ConsiderationView": "ticket description is_dangerous has_preview limits looks earlier "
    "rejected why_not",
    "ItemChangeView": "sequence_no before after problem",
    "GroupsView": "items is_cut",
    "BulkSampleView": "command_id command_type fingerprint parked_at attempts "
    "error_code error_message correlation_id batch_id",
    "ListView[GroupView]": "items",
    "BulkPreviewView": "domain total groups samples",
    "BulkView": "operation_id domain verb conditions rate actor status total done "
    "skipped failed created_at started_at finished_at edited_paths reason "
    "limit starts_at stopped_by stopped_at per_second seconds_left "
    "last_sign_at sentence",
    "ChildView": "ticket_id sequence_no status error_message attempt_count last_attempt_at",
    "CommandDetail": f"{_COMMAND} progress payload meta stack parent_ticket_id sequence_no "
    "status_url",
    "PauseView": "since until by reason type",
    "Paused": "domain paused paused_types was_paused",
    "ProgressView": "fraction message at",
    "CommandView": _COMMAND,
    "Counted": "count",
    "DomainView": "domain ready delayed oldest_seconds parked workers concurrency in_flight "
    "batch_remaining replies replies_refused dispatch_lag_seconds pending_retry unconfirmed "
    "unconfirmed_seconds paused paused_types blocked_keys blocked_seconds",
    "EditExampleView": "command_id changes failure",
    "EditView": "editor created_at expires_at digest changes payload masked_count",
    "EditPreviewView": "domain looked_at total changed unchanged failed failures examples",
    "ExecutionLimitView": "domain type per_key max_running rate per burst paused_at paused_until "
    "paused_by pause_reason updated_at updated_by running tokens waiting oldest",
    "ExemptionView": "user_id exempted_by reason expires_at created_at",
    "GroupView": "domain fingerprint command_type error_class error_code message "
    "sample_message sample_command_id parked_count total_seen first_seen "
    "last_seen first_frame last_frame note note_by note_at assignee "
    "emptied_at back_at back_count audit_id back_after_seconds sentence",
    "Health": "status checks",
    "KeyPlaceView": "place command_id command_type status number since is_blocking",
    "KeyPolicyView": "domain on_park",
    "KeyView": "domain ordering_key places",
    "LimitedKeyView": "limit_key running waiting oldest",
    "LimitView": "limit_type scope current_value max_value reset_seconds",
    "LimitsStatusView": "limits defaults exemptions overrides users",
    "OrderingKeyView": "ordering_key head head_type head_status is_blocked waiting since",
    "ParkedView": "domain command_id command_type reason parked_at attempts max_attempts "
    "last_error_type last_error_code last_error_msg correlation_id batch_id created_at payload "
    "stack",
    "ReplyErrorView": "code message error_class",
    "ReplyView": "command_id correlation_id domain type outcome completed_at data error meta "
    "msg_id receipt",
    "RetriedView": f"{_TICKET} retried exhausted",
    "ReviewView": f"{_TICKET} children next_cursor",
    "ReviewedChildView": "ticket_id sequence_no status digest payload masked_count is_edited edit",
    "ScheduleView": "schedule_id domain name command_type cron timezone every_seconds at missed "
    "missed_cap overlap jitter_seconds expires_in_seconds priority ordering_key reply_to "
    "max_attempts next_tick_at last_tick_at last_command_id last_error version created_by "
    "created_at updated_by updated_at paused_at paused_by pause_reason put_for data status "
    "meta",
    "Skipped": "domain ordering_key stepped_over",
    "StatusView": f"{_TICKET} children next_cursor",
    "Submitted": "batch_id batch_type status status_url retry_after_seconds links",
    "TicketView": _TICKET,
    "TicksView": "ticks",
    "Triggered": "domain command_id status_url",
    "UndecidedView": "batch_id command_id sequence_no domain batch_type child_count reason "
    "created_by editor created_at expires_at digest links",
    "UserLimitsView": "user_id max_pending_batches max_pending_children cooldown_seconds "
    "updated_by updated_at",
    "UserStateView": "user_id limits",
    "RotatedView": "token details",
    "TokenView": "token_id user_id scopes domains label created_at expires_at revoked_at "
    "last_used_at",
    "Whoami": "user_id scopes domains",
}


def test_no_view_shows_a_field_that_this_table_does_not_list() -> None:
    """A new field of a data class is shown unless it is hidden: decide which, then list it here."""
    modules = [
        import_module(f"{schemas.__name__}.{each.name}")
        for each in pkgutil.iter_modules(schemas.__path__)
        if each.name != "views"
    ]
    views: dict[str, type[View]] = {
        value.__name__: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, View)
        and value.__module__ == module.__name__
    }

    shown = {name: set(view.model_fields) for name, view in views.items()}
    assert shown == {name: set(names.split()) for name, names in SHOWN_FIELDS.items()}
