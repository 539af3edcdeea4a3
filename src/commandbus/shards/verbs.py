"""What becomes of each verb of a bus that is over several shards.

A verb that is given a domain goes to its shard; that needs no line here. Every other verb has one:
who has none is refused, and a test looks that none was forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from commandbus.access.model import Caller
from commandbus.errors import CommandBusError, DatabaseUnavailableError, InvalidBatchRequestError
from commandbus.governance.approvals import BATCH_APPROVE
from commandbus.governance.model import LimitState, LimitType
from commandbus.governance.tickets import tickets_by_id
from commandbus.names import check_domain, check_uuid, domain_first
from commandbus.shards import checkups
from commandbus.shards.call import Call, named
from commandbus.shards.following import found_by, load
from commandbus.shards.merging import (
    added,
    by_event,
    by_name,
    by_time_and_id,
    by_time_then_id,
    group_list,
    groups,
    joined,
    known,
    limits_status,
    of_domains,
    of_domains_by_name,
    of_id,
    one_group,
    ordered,
    paged,
    unique,
)
from commandbus.shards.pages import oldest
from commandbus.typed.commands import name_of_class

Rule = Callable[[Call], Awaitable[Any]]

#: How long a request waits for the home shard, in seconds: it reads one row there by its key.
HOME_SECONDS = 2.0

# -- which shard


async def home(call: Call) -> Any:
    """What belongs to no domain."""
    return await call.home()


def of_object(name: str) -> Rule:
    """Where the domain of an argument is."""

    async def rule(call: Call) -> Any:
        return await call.in_domain(call.given[name].domain)

    return rule


async def _ticket(bus: Any, ticket_id: Any) -> Any:
    found = await tickets_by_id(bus._store.gateway, [ticket_id])
    return found[0] if found else None


async def _ticket_of(ticket_id: Any, bus: Any) -> Any:
    return await _ticket(bus, ticket_id)


async def _operation(bus: Any, operation_id: Any) -> Any:
    return await bus.bulk.get(operation_id)


_OF_TICKET = found_by("ticket_id", "batch", _ticket)
_OF_OPERATION = found_by("operation_id", "bulk operation", _operation)


async def on_all(call: Call) -> Any:
    """On all shards, one after the other, and on none if one is known to be down."""
    names = list(call.sharded.map.shards)
    for name in names:
        await call.sharded.answering(name)
    answers = []
    for name in names:
        try:
            answers.append(await call.at(name))
        except CommandBusError as error:
            if isinstance(error, DatabaseUnavailableError) and answers:
                done = ", ".join(names[: len(answers)])
                raise DatabaseUnavailableError(
                    f"shard {name!r}: {error}; it is done on {done}, so repeat it"
                ) from error
            raise
    return answers[0]


async def on_those_that_answer(call: Call) -> None:
    """On all shards; one that is missing is told when it is used."""
    await call.sharded.everywhere(call.on)


def refused(*advice: str) -> Rule:
    """Not over shards."""

    async def rule(call: Call) -> Any:
        call.refuse(*advice)

    return rule


# -- verbs that look at more than a domain


async def _typed(call: Call) -> Any:
    """`send` and `call`: of a typed command its class has the domain."""
    given = call.given["domain"]
    domain = given if isinstance(given, str) else name_of_class(type(given)).domain
    return await call.in_domain(check_domain(domain))


async def _audit_trail(call: Call) -> Any:
    given = call.given
    domain, wanted = domain_first(given["given"], given["domain"], given["command_id"])
    if domain is not None:
        return await _where_it_is(call, domain, lambda bus: bus.get_command(domain, wanted))
    return sorted(await known(call, wanted), key=lambda event: event.ts)


async def _of_command(call: Call) -> Any:
    """What is read of one command, also of one that its domain left behind when it moved."""
    domain, wanted = call.given["domain"], call.given["command_id"]
    return await _where_it_is(call, domain, lambda bus: bus.get_command(domain, wanted))


async def _of_batch(call: Call) -> Any:
    """The same of a batch."""
    domain, wanted = call.given["domain"], call.given["batch_id"]
    return await _where_it_is(call, domain, lambda bus: bus.get_batch(domain, wanted))


async def _where_it_is(call: Call, domain: str, read: Callable[[Any], Awaitable[Any]]) -> Any:
    name = call.sharded.shard_of(domain)
    shard = await call.sharded.trying(name)
    with named(call.sharded, name):
        is_here = await read(shard) is not None
    if not is_here:
        # What was left on a shard that does not answer cannot be seen now; that is no reason to
        # refuse what is asked of one that does.
        with suppress(DatabaseUnavailableError):
            name = await call.first(read, "it") or name
    with named(call.sharded, name):
        return await call.on(await call.sharded.trying(name))


async def _check(call: Call) -> None:
    """Fit if one shard is: those that are down are no reason to send everybody away."""
    seen = await call.sharded.everywhere(call.on)
    if not seen.found:
        raise DatabaseUnavailableError("none of the shards answers")


async def anyone(call: Call) -> Any:
    """What every shard says in the same way."""
    return next(iter((await call.everywhere()).found.values()))


async def _soon_from_home(call: Call) -> Any:
    """What each request needs of the home shard, which others shall not wait for."""
    return await call.home(within=HOME_SECONDS)


async def _count_request(call: Call) -> Any:
    """Counted where what belongs to no domain is. While that is down nobody is kept away for it:
    each process has limits of its own.
    """
    try:
        return await _soon_from_home(call)
    except DatabaseUnavailableError:
        return LimitState(LimitType.GLOBAL_API_REQUESTS, "global", 0, None)


async def _submit(call: Call) -> Any:
    declared = call.blank.governance.types.require(call.given["batch_type"])
    if declared.name == BATCH_APPROVE:
        await _refuse_decisions_elsewhere(call, declared.domain)
    return await call.in_domain(declared.domain)


async def _refuse_decisions_elsewhere(call: Call, domain: str) -> None:
    """A batch of decisions and what it decides about are one transaction, so on one shard."""
    here = call.sharded.shard_of(domain)
    caller: Caller = call.given["caller"]
    for item in call.given["items"]:
        wanted = item.get("ticket_id") if isinstance(item, dict) else None
        try:
            ticket_id = check_uuid(wanted, "ticket_id")
        except CommandBusError:
            continue  # the batch type says so in its own words
        found = await call.first(partial(_ticket_of, ticket_id), f"batch {ticket_id}")
        if found is not None and found != here and caller is not None:
            raise InvalidBatchRequestError(
                f"batch {ticket_id} is on another shard than the batches of decisions, and no "
                "transaction spans both; decide about it by itself"
            )


#: These look at their arguments themselves.
SPECIAL: dict[str, Rule] = {
    "send": _typed,
    "get_audit_trail": _audit_trail,
    **dict.fromkeys(
        (
            "get_command",
            "search.require",
            "search.payload",
            "search.former_payloads",
            "search.reply",
            "search.meta",
            "search.stack",
            "troubleshooting.life",
        ),
        _of_command,
    ),
    **dict.fromkeys(
        (
            "get_batch",
            "list_batch_commands",
            "batches.get",
            "batches.require",
            "batches.page_commands",
        ),
        _of_batch,
    ),
    "loads.load": load,
    "loads.resume": load,
    "governance.submit": _submit,
    "governance.count_request": _count_request,
}

_DOCTOR = "run `commandbus doctor --fix` with the address of the shard (--dsn)"
_SEALS = "each database seals its own audit: give the address of one shard (--dsn)"
_RULE = "name a domain, or give the address of each shard (--dsn)"

#: Without a domain.
RULES: dict[str, Rule] = {
    "check": _check,
    "pauses": ordered(lambda pause: (pause.domain, pause.type or "")),
    "batches.facts": of_object("batch"),
    "batches.ending": of_object("batch"),
    "batches.outlook": of_object("batch"),
    "batches.errors": of_object("batch"),
    "batches.list_open": ordered(lambda batch: batch.created_at, reverse=True),
    "bulk.get": _OF_OPERATION,
    "bulk.require": _OF_OPERATION,
    "bulk.page_items": _OF_OPERATION,
    "bulk.run": _OF_OPERATION,
    "bulk.stop": _OF_OPERATION,
    "bulk.resume": _OF_OPERATION,
    "bulk.page": paged("bulk operations", by_time_and_id),
    "bulk.preview": of_object("chosen"),
    "bulk.preview_edit": of_object("chosen"),
    "bulk.start": of_object("chosen"),
    "loads.page": paged("loads", by_time_and_id),
    "limits.list": ordered(lambda limit: (limit.domain, limit.type or "")),
    "schedules.list": paged("schedules", by_name, oldest),
    "schedules.preview": anyone,
    "search.commands": paged("commands", by_time_then_id),
    "search.audit": paged("audit", by_event),
    "search.people": paged("people", by_event),
    "search.domains": of_id("command_id"),
    "search.identify": of_id("some_id"),
    "troubleshooting.page": paged("parked", by_time_then_id, oldest),
    "troubleshooting.counts": added,
    "troubleshooting.groups": groups,
    "troubleshooting.find_groups": group_list,
    "troubleshooting.require_group": one_group,
    "troubleshooting.masked": of_object("item"),
    "governance.get": _OF_TICKET,
    "governance.require": _OF_TICKET,
    "governance.child": _OF_TICKET,
    "governance.page_children": _OF_TICKET,
    "governance.wait": _OF_TICKET,
    "governance.retry": _OF_TICKET,
    "governance.cancel": _OF_TICKET,
    "governance.decide": _OF_TICKET,
    "governance.decide_edit": _OF_TICKET,
    "governance.review": _OF_TICKET,
    "governance.consider": _OF_TICKET,
    "governance.preview": _OF_TICKET,
    "governance.examine": _OF_TICKET,
    "governance.item_type": found_by("batch_id", "batch", _ticket),
    "governance.page": paged("tickets", by_time_and_id),
    "governance.page_undecided": paged("undecided", by_time_and_id, oldest),
    "governance.governed_types": joined,
    "governance.register": on_those_that_answer,
    "governance.limits_status": limits_status,
    "governance.limit_states": refused("`limits_status` shows those of all"),
    "governance.exempt": on_all,
    "governance.unexempt": on_all,
    "governance.set_user_limits": on_all,
    "upkeep.doctor": checkups.diagnosis,
    "upkeep.chores": checkups.chores,
    "upkeep.settings_overview": checkups.settings_overview,
    "upkeep.seal_state": refused(_SEALS),
    "upkeep.seal_audit": refused(_SEALS),
    "upkeep.get_seal_heads": refused(_SEALS),
    "upkeep.verify_audit": refused(_SEALS),
    "upkeep.get_retention": unique,
    "upkeep.set_retention": refused(_RULE),
    "upkeep.clear_retention": refused(_RULE),
    "upkeep.prune": refused(_RULE),
    "upkeep.tend_audit": refused(_RULE),
    "upkeep.standing.read": home,
    "upkeep.runs.last": checkups.last,
    "upkeep.runs.well_since": checkups.well_since,
    "upkeep.runs.start": checkups.start,
    "upkeep.runs.fix": refused(_DOCTOR),
    "upkeep.runs.verify": refused(_SEALS),
    "upkeep.figures.worker_counts": joined,
    "upkeep.figures.domain_names": unique,
    "upkeep.figures.domains": of_domains,
    "upkeep.figures.limits": joined,
    "upkeep.figures.shards": checkups.who_answers,
    "upkeep.figures.governed": joined,
    "upkeep.figures.statuses": added,
    "upkeep.figures.overview": of_domains,
    "upkeep.figures.rates": of_domains_by_name,
    "upkeep.figures.group_trends": joined,
    "upkeep.figures.workers": ordered(lambda worker: (worker.heartbeat_at, worker.worker_id)),
    "tokens.create": home,
    "tokens.rotate": home,
    "tokens.page": home,
    "tokens.revoke": home,
    "tokens.find": _soon_from_home,
    "tokens.find_many": home,
    "tokens.touch": _soon_from_home,
    "tokens.findings": home,
    **{
        f"tokens.sessions.{verb}": home
        for verb in (
            "begin",
            "use",
            "find_many",
            "prove",
            "end",
            "list",
            "note",
            "new_code",
            "use_code",
        )
    },
}

#: What needs no database: the bus without one answers.
LOCAL = frozenset({
    "handler", "governance.types", "governance.is_available", "governance.on_behalf_of",
    "governance.allowed_actions", "governance.version", "governance.why_not_decide",
    "tokens.split", "tokens.is_proved", "tokens.key_for",
})  # fmt: skip
#: What is told to the bus of each shard, as soon as there is one.
TOLD = frozenset({
    "register_handler", "include", "governance.declare", "governance.register_handlers",
})  # fmt: skip
#: Parts of a bus, and parts of these.
PARTS = frozenset({
    "batches", "loads", "troubleshooting", "bulk", "search", "keys", "governance", "limits",
    "schedules", "tokens", "tokens.sessions", "upkeep", "upkeep.figures", "upkeep.runs",
    "upkeep.standing",
})  # fmt: skip
#: What gives one item after the other.
STREAMS = frozenset({
    "replies", "search.every_command", "search.every_event", "troubleshooting.every_masked",
})  # fmt: skip
#: What is entered, of one domain.
BLOCKS = frozenset({"worker", "consumer"})
#: Of parts: the bus that is closed closes them.
CLOSED = frozenset({"governance.close", "upkeep.runs.close"})
#: What `SpanningBus` does itself.
OWN = frozenset({
    "close", "stop", "monitor", "domains", "started_domains", "stuck_domains", "run_worker",
    "connect", "schedules.firing", "upkeep.figures.pool", "upkeep.figures.watch", "search.tail",
    "upkeep.standing.settings", "wait_reply", "handover", "batches.relay",
    "call",  # sends, and waits for the reply, by the verbs of this bus
})  # fmt: skip
