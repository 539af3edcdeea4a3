"""The JSON documents that SQL functions take: one parameter for a whole group.

One document unpacked on the server costs the client a thirtieth of an array of JSON texts.
Payloads and results are encoded already and go in as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson

from commandbus.database.model import Edit, Lease, NewBatch, OnBehalf, Outcome, OutcomeKind, Said
from commandbus.models import NewCommand


def dump(value: Any) -> str:
    """Encode a document of our own making."""
    return orjson.dumps(value).decode()


def secrets(keys: Mapping[str, Collection[str]]) -> str:
    """What declare_secrets takes: keys by command type."""
    return dump({kind: sorted(names) for kind, names in keys.items()})


def send(command: NewCommand) -> str:
    """What send_for takes."""
    return dump(_send(command))


def on_behalf(who: OnBehalf) -> str:
    """For whom a function acts."""
    return dump({"user": who.user_id, "may_bypass": who.may_bypass, "declared": who.declared})


def sends(commands: Iterable[NewCommand]) -> str:
    """What offer_commands takes."""
    return dump([_send(command) for command in commands])


#: Five lists, separated by commas, and the messages, one line each.
Packed = tuple[str, str, str, str, str, str]


def packed(commands: Sequence[NewCommand]) -> Packed:
    """What send_packed takes. Names have no commas."""
    return (
        ",".join([command.command_id.hex for command in commands]),
        ",".join([command.command_type for command in commands]),
        ",".join([command.reply_to for command in commands]),
        ",".join([command.correlation_id.hex for command in commands]),
        ",".join([str(command.max_attempts) for command in commands]),
        b"\n".join([_message(command) for command in commands]).decode(),
    )


def joined(parts: Sequence[Packed]) -> Packed:
    """The same of all parts, in their order."""
    *lists, messages = zip(*parts, strict=True)
    ids, types, replies, relations, limits = (",".join(each) for each in lists)
    return ids, types, replies, relations, limits, "\n".join(messages)


def alone(command: NewCommand) -> tuple[UUID, str, str, UUID, int, str]:
    """What offer_one takes."""
    message = _message(command).decode()
    return (
        command.command_id, command.command_type, command.reply_to, command.correlation_id,
        command.max_attempts, message,
    )  # fmt: skip


def _message(command: NewCommand) -> bytes:
    # Without the opening brace: the server puts domain and time before it.
    message = {
        "command_id": command.command_id,
        "type": command.command_type,
        "correlation_id": command.correlation_id,
        "reply_to": command.reply_to or None,
        "data": orjson.Fragment(command.data),
    }
    if command.meta is not None:
        message["meta"] = command.meta
    return orjson.dumps(message)[1:]


def batch(new: NewBatch) -> tuple[str | None, str | None, str | None, str | None, bool]:
    """What the functions that create a batch take after the commands."""
    return (new.name, text(new.custom_data), new.created_by, text(new.on_complete), new.notifies)


def text(encoded: bytes | None) -> str | None:
    """JSON that is encoded already, as a parameter."""
    return None if encoded is None else encoded.decode()


def leases(held: Iterable[Lease]) -> str:
    """What extend_leases takes."""
    return dump([_fence(lease) for lease in held])


def progress(said: Iterable[Said]) -> str:
    """What record_progress takes."""
    return dump(
        [
            {**_fence(each.lease), "fraction": each.fraction, "message": each.message}
            for each in said
        ]
    )


def completions(completed: Iterable[Outcome]) -> str:
    """What complete_commands takes."""
    return dump([_completion(outcome) for outcome in completed])


def outcomes(settled: Sequence[Outcome]) -> str:
    """What settle_commands takes: items by kind, and what the handlers send."""
    document: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in settled:
        document[outcome.kind.value].append(_item(outcome))
        for outgoing in outcome.sends:
            document["send"].append(
                {
                    "by": outcome.lease.command_id,
                    "lease_epoch": outcome.lease.lease_epoch,
                    "domain": outgoing.domain,
                    "commands": [_send(command) for command in outgoing.commands],
                    "batch_id": outgoing.batch_id,
                    "actor": outgoing.actor,
                }
            )
    return dump(document)


def edits(edited: Mapping[UUID, Edit]) -> str:
    """What operator_retry takes."""
    return dump(
        {
            str(command_id): {
                "data": orjson.Fragment(edit.data),
                "previous_msg_id": edit.previous_msg_id,
                "changes": dict(edit.changes),
            }
            for command_id, edit in edited.items()
        }
    )


def _send(command: NewCommand) -> dict[str, Any]:
    document = {
        "command_id": command.command_id,
        "type": command.command_type,
        "data": orjson.Fragment(command.data),
        "reply_to": command.reply_to,
        "correlation_id": command.correlation_id,
        "max_attempts": command.max_attempts,
    }
    if command.flow is not None:
        document |= command.flow.document()
    if command.meta is not None:
        document["meta"] = command.meta
    return document


def _fence(lease: Lease) -> dict[str, Any]:
    return {
        "command_id": lease.command_id,
        "msg_id": lease.msg_id,
        "lease_epoch": lease.lease_epoch,
    }


def _completion(outcome: Outcome) -> dict[str, Any]:
    lease = outcome.lease
    item = {
        "command_id": lease.command_id,
        "msg_id": lease.msg_id,
        "lease_epoch": lease.lease_epoch,
        "data": orjson.Fragment(outcome.result),
    }
    if outcome.meta is not None:
        item["meta"] = outcome.meta
    return item


def _item(outcome: Outcome) -> dict[str, Any]:
    if outcome.kind is OutcomeKind.COMPLETE:
        return _completion(outcome)
    item = _fence(outcome.lease)
    if outcome.meta is not None:
        item["meta"] = outcome.meta
    if outcome.kind in {OutcomeKind.RETRY, OutcomeKind.SNOOZE}:
        item["delay_seconds"] = outcome.delay_seconds
    if outcome.reason is not None:
        item["reason"] = str(outcome.reason)
    if outcome.failure is not None:
        item["error_type"] = outcome.failure.error_type
        item["error_code"] = outcome.failure.code
        item["error_msg"] = outcome.failure.message
        item["error_details"] = outcome.failure.details
        if outcome.failure.stack is not None:
            item["error_stack"] = outcome.failure.stack
    return item
