"""Rows of the core tables: their columns, in the order of the models that they become."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, LiteralString, cast
from uuid import UUID

from commandbus.database.model import Lease
from commandbus.errors import DuplicateCommandError, InvalidPayloadError
from commandbus.models import CommandMetadata, CommandStatus, ParkReason, TroubleshootingItem
from commandbus.payload import decode_payload

COMMAND_COLUMNS: LiteralString = (
    "c.domain, c.queue_name, c.msg_id, c.command_id, c.command_type, c.status, c.attempts, "
    "c.max_attempts, c.lease_expires_at, c.last_error_type, c.last_error_code, c.last_error_msg, "
    "c.created_at, c.updated_at, c.reply_queue, c.correlation_id, c.batch_id, c.lease_epoch, "
    "c.leased_by, c.deliver_at, c.expires_at, c.priority, c.ordering_key, c.limit_key, "
    "{schema}.due_at(c.domain, c.status, c.leased_by, c.msg_id, c.deliver_at), "
    "case when c.status = 'PENDING' then {schema}.waiting_text(c.domain, c.command_id) end"
)
#: In the order of BatchMetadata.
BATCH_COLUMNS: LiteralString = (
    "b.batch_id, b.domain, b.name, b.custom_data, b.status, b.total_count, b.completed_count, "
    "b.failed_count, b.canceled_count, b.in_troubleshooting_count, b.created_at, b.started_at, "
    "b.completed_at, b.history_since"
)
#: In the order of AuditEvent. What SENT tells of its command is read from the command, which has it
#: for good: in each event it would be written once more for every command that is sent.
AUDIT_COLUMNS: LiteralString = (
    "a.audit_id, a.domain, a.command_id, a.event_type, a.ts, case when a.event_type = 'SENT' then"
    " coalesce((select jsonb_build_object("
    "'type', c.command_type, 'correlation_id', c.correlation_id)"
    " || coalesce(a.details_json, jsonb_build_object()) from {schema}.command_bus_command c"
    " where c.domain = a.domain and c.command_id = a.command_id),"
    " {schema}.moved_details(a.domain, a.command_id)"
    " || coalesce(a.details_json, jsonb_build_object()), a.details_json)"
    " else a.details_json end, a.batch_id, a.actor"
)

#: The same of a command in the history: since when it is there comes last.
HISTORY_COLUMNS: LiteralString = COMMAND_COLUMNS + ", c.moved_at"
HISTORY_WHERE: LiteralString = (
    "select " + HISTORY_COLUMNS + " from {schema}.command_bus_history c where "  # noqa: S608  (literals only)
)
COMMANDS_WHERE: LiteralString = (
    "select " + COMMAND_COLUMNS + " from {schema}.command_bus_command c where "  # noqa: S608  (literals only)
)
BATCHES_WHERE: LiteralString = (
    "select " + BATCH_COLUMNS + " from {schema}.command_bus_batch b where "  # noqa: S608  (literals only)
)


def command_of(*row: Any) -> CommandMetadata:
    """A row of COMMAND_COLUMNS, or of HISTORY_COLUMNS."""
    values = cast("Any", (*row[:5], CommandStatus(row[5]), *row[6:]))
    return CommandMetadata(*values)


def parked_item_of(*row: Any) -> TroubleshootingItem:
    """A row of list_troubleshooting, and its stack."""
    try:
        data = None if row[14] is None else decode_payload(row[14])
    except InvalidPayloadError:
        data = None  # it may be the very reason why the command is here
    values = cast("Any", (*row[:3], ParkReason(row[3]), *row[4:14], data, row[15]))
    return TroubleshootingItem(*values)


def raw_leases(domain: str, answer: Any) -> list[Lease]:
    """What must be known of leases to give them back, from rows that the driver cannot read.

    In the order of receive_commands, in binary: the id, the type, the message, the epoch.
    """
    leases = []
    for row in range(0 if answer is None else answer.ntuples):
        if answer.get_value(row, 2) is None:
            continue  # complete_and_receive says of it that its lease is lost
        command_id = UUID(bytes=bytes(answer.get_value(row, 0)))
        msg_id, epoch = (int.from_bytes(answer.get_value(row, column), "big") for column in (2, 3))
        now = datetime.now(UTC)
        leases.append(
            Lease(
                domain, command_id, "", msg_id, epoch, 0, 0, False, command_id, "", None, now, None
            )
        )
    return leases


def raise_if_known(domain: str, known: list[Any] | None) -> None:
    """Refuse what offer_commands and create_batch did not create, because ids were known."""
    if known:
        raise DuplicateCommandError(domain, [UUID(str(command_id)) for command_id in known])
