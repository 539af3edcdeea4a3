"""How each changing route of the document is asked, and what it needs to be there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from commandbus import BatchCommand, CommandBus
from commandbus.access.model import EVERYTHING
from commandbus.demo import vms
from commandbus.governance.model import Item
from commandbus.troubleshooting.model import BulkFilter, BulkVerb
from tests.http_world import caller
from tests.integration.governed import caller as member
from tests.integration.http_farm import APPROVALS, BATCHES, LIMITS, POWER, VMS
from tests.integration.http_shop import group_of, work_off
from tests.security.parking import parking
from tests.waiting import until

#: Who asks. Nobody else does anything while a route is asked.
ANN = caller(*EVERYTHING, user="ann")
#: Who prepared what there is.
APP, DECIDER = member("app", *EVERYTHING), member("petra", *EVERYTHING)
REASON = {"reason": "because"}
#: Routes that change nothing the audit tells of: they look, or hand out and take back replies.
QUIET = {"preview_bulk", "preview_edit", "lease_replies", "acknowledge_replies", "start_doctor"}

Asked = tuple[str, dict[str, Any] | None]


@dataclass
class World:
    """Makes what each route needs, with everything that its change could touch."""

    bus: CommandBus

    async def batch_of_one(self, command_type: str = "Work") -> tuple[UUID, UUID]:
        """A batch that ends with its only command, and then sends another."""
        command_id = uuid4()
        batch_id = await self.bus.create_batch(
            "shop",
            [BatchCommand(command_type, command_id, {"n": 1})],
            on_complete_command=BatchCommand("Work", uuid4(), {}),
            actor="app",
        )
        return batch_id, command_id

    async def parked(self) -> tuple[UUID, UUID]:
        batch_id, command_id = await self.batch_of_one("Fail")
        await work_off(self.bus, "shop")
        return batch_id, command_id

    async def load(self, start: str = "sealed") -> UUID:
        async def rows() -> AsyncIterator[dict[str, Any]]:
            yield {"command_type": "Work", "data": {"n": 1}}
            raise OSError("gone")

        done = await self.bus.loads.load(
            "shop", rows(), checkpoint_size=1, created_by="app", start=start,  # type: ignore[arg-type]
        )  # fmt: skip
        return done.batch_id

    async def bulk(self) -> UUID:
        _, command_id = await self.parked()
        chosen = BulkFilter("shop", command_ids=(command_id,))
        made = await self.bus.bulk.start(BulkVerb.RETRY, chosen, operator="app")
        return made.operation_id

    async def ticket(self, batch_type: str = "BATCH_CREATE", *items: Item) -> UUID:
        given = list(items) or [{"name": f"vm{uuid4().hex[:8]}"}]
        who = DECIDER if batch_type == "BATCH_APPROVE" else APP
        made = await self.bus.governance.submit(who, batch_type, given)
        return made.ticket.ticket_id

    async def waiting(self) -> UUID:
        name = f"vm{uuid4().hex[:8]}"
        async with self.bus._store.transaction() as transaction:
            await transaction.conn.execute(
                "insert into commandbus_demo.vm (name, cpu, memory_mb, created_by, changed_by)"
                " values (%s, 1, 512, gen_random_uuid(), gen_random_uuid())",
                (name,),
            )
        return await self.ticket("BATCH_DELETE", {"name": name})

    async def failed(self, batch_type: str, domain: str, *items: Item) -> UUID:
        """A ticket with a child that has failed."""
        ticket = await self.ticket(batch_type, *items)
        leases = await self.bus._store.receive(
            domain, vt_seconds=60, quantity=9, worker="t", limits={}
        )
        await self.bus._store.settle(domain, [parking(lease) for lease in leases])
        return ticket

    async def examined(self) -> int:
        """The number of the last run of the doctor, once none goes on."""

        async def ended() -> int | None:
            found = await self.bus.upkeep.runs.last()
            return found.last.run_id if found.last and not found.is_running else None

        return int(await until(ended, "the end of the doctor's run"))


def url(*parts: object) -> str:
    return "/".join(["/api/v1", *map(str, parts)])


async def _send(world: World) -> Asked:
    return url("commands"), {"domain": "shop", "command_type": "Work", "data": {}}


async def _create_batch(world: World) -> Asked:
    return url("command-batches/shop"), {"commands": [{"command_type": "Work", "data": {}}]}


async def _cancel_command(world: World) -> Asked:
    return url("commands/shop", (await world.batch_of_one())[1], "cancel"), REASON


async def _reschedule(world: World) -> Asked:
    command_id = (await world.batch_of_one())[1]
    return url("commands/shop", command_id, "reschedule"), {"delay_seconds": 60}


async def _pause(world: World) -> Asked:
    await world.batch_of_one()
    return url("domains/shop/pause"), REASON


async def _resume(world: World) -> Asked:
    await world.batch_of_one()
    await world.bus.pause("shop", reason="why", operator="app")
    return url("domains/shop/resume"), {}


async def _set_priority(world: World) -> Asked:
    return url("commands/shop", (await world.batch_of_one())[1], "priority"), {"priority": 2}


async def _set_level_worth(world: World) -> Asked:
    await world.batch_of_one()
    return url("domains/shop/level-worth"), {"level_seconds": 61}


async def _skip_key(world: World) -> Asked:
    for command_type in ("Fail", "Work"):  # the first is parked, the other waits behind it
        await world.bus.send("shop", command_type, uuid4(), {}, ordering_key="k", actor="app")
    await work_off(world.bus, "shop")
    return url("keys/shop/k/skip"), REASON


async def _set_key_policy(world: World) -> Asked:
    await _skip_key(world)
    return url("keys/shop"), {"on_park": "skip", **REASON}


def _on_batch(verb: str, body: Any, made: Callable[[World], Awaitable[tuple[UUID, UUID]]]) -> Any:
    async def ask(world: World) -> Asked:
        return url("command-batches/shop", (await made(world))[0], verb), body

    return ask


def _on_load(verb: str, body: Any) -> Any:
    async def ask(world: World) -> Asked:
        return url("command-batches/shop", await world.load(), verb), body

    return ask


def _on_parked(verb: str, body: Any) -> Any:
    async def ask(world: World) -> Asked:
        return url("troubleshooting/shop", (await world.parked())[1], verb), body

    return ask


def _on_group(verb: str, body: Any) -> Any:
    async def ask(world: World) -> Asked:
        await world.parked()
        return url("failure-groups/shop", group_of("shop"), verb), body

    return ask


async def _start_doctor(world: World) -> Asked:
    return url("doctor/runs"), {"domain": "shop"}


async def _fix_findings(world: World) -> Asked:
    _, command_id = await world.parked()
    async with world.bus._store.transaction() as transaction:
        await transaction.conn.execute(
            "delete from commandbus.command_bus_troubleshooting where command_id = %s",
            (command_id,),
        )
    await world.examined()
    await world.bus.upkeep.doctor(domain="shop", operator="app")
    return url("doctor/fixes"), {"run_id": await world.examined(), "domain": "shop", **REASON}


async def _start_bulk(world: World) -> Asked:
    ids = [str((await world.parked())[1])]
    edit = {"merge_patch": {"n": 2}}
    return url("bulk-operations"), {
        "verb": "retry", "filter": {"domain": "shop", "command_ids": ids}, "edit": edit,
    }  # fmt: skip


async def _preview(world: World) -> Asked:
    return url("bulk-operations/preview"), {"domain": "shop"}


async def _preview_edit(world: World) -> Asked:
    return url("bulk-operations/preview-edit"), {
        "filter": {"domain": "shop"}, "edit": {"merge_patch": {"a": 1}},
    }  # fmt: skip


async def _stop_bulk(world: World) -> Asked:
    return url("bulk-operations", await world.bulk(), "stop"), None


async def _resume_bulk(world: World) -> Asked:
    operation_id = await world.bulk()
    await world.bus.bulk.stop(operation_id, operator="app")
    return url("bulk-operations", operation_id, "resume"), {}


def _on_schedule(verb: str, body: Any = None) -> Any:
    async def ask(world: World) -> Asked:
        name = f"x{uuid4().hex}"
        await world.bus.schedules.put("shop", name, "Work", {}, every=60, operator="app")
        if verb == "resume":
            await world.bus.schedules.pause("shop", name, operator="app")
        return url("schedules/shop", name, *filter(None, [verb])), body

    return ask


def _on_limit(*path: str, is_set: bool = False) -> Any:
    async def ask(world: World) -> Asked:
        if is_set:
            await world.bus.limits.set("shop", *path, max_running=99, operator="app")
        return url("limits/shop", *path), None if is_set else {"max_running": 99}

    return ask


async def _lease(world: World) -> Asked:
    return url("replies/shop/lease"), {"limit": 1, "vt_seconds": 1}


async def _ack(world: World) -> Asked:
    return url("replies/shop/ack"), {"replies": [{"msg_id": 1, "receipt": 99}]}


async def _submit_any(world: World) -> Asked:
    items = [{"name": f"vm{uuid4().hex[:8]}"}]
    return BATCHES, {"batch_type": "BATCH_CREATE", "items": items}


async def _submit(world: World) -> Asked:
    return VMS, {"operation": "create", "items": [{"name": f"vm{uuid4().hex[:8]}"}]}


async def _power(world: World) -> Asked:
    await world.waiting()
    (machine, *_) = await _machines(world.bus)
    return POWER, {"operation": "start", "items": [{"name": machine}]}


async def _machines(bus: CommandBus) -> list[str]:
    return [each["name"] for each in await vms.list_machines(bus)]


async def _approve(world: World) -> Asked:
    decision = {"ticket_id": str(await world.waiting()), "decision": "approve"}
    return APPROVALS, {"items": [decision]}


def _decide(decision: str) -> Any:
    async def ask(world: World) -> Asked:
        body = {"decision": decision, **REASON}
        return f"{BATCHES}/{await world.waiting()}/decision", body

    return ask


def _decide_edit(decision: str) -> Any:
    async def ask(world: World) -> Asked:
        name = f"vm{uuid4().hex[:8]}"
        ticket = await world.failed("BATCH_CREATE", "vms", {"name": name})
        page = await world.bus.governance.page_children(APP, ticket)
        await world.bus.troubleshooting.retry(
            "vms", page.items[0].ticket_id, operator="app", payload={"name": f"{name}x"}
        )
        (child,) = (await world.bus.governance.review(APP, ticket)).children
        assert child.edit is not None
        body = {"decision": decision, "digest": child.edit.digest, **REASON}
        return f"{BATCHES}/{ticket}/children/1/decision", body

    return ask


def _on_ticket(base: str, verb: str, body: Any) -> Any:
    async def ask(world: World) -> Asked:
        items: tuple[Item, ...] = ()
        if base == APPROVALS:
            item = {"ticket_id": str(await world.waiting()), "decision": "approve"}
            kind, domain, items = "BATCH_APPROVE", "approvals", (item,)
        else:
            kind, domain = "BATCH_CREATE", "vms"
        if verb == "retry":
            ticket = await world.failed(kind, domain, *items)
        else:
            ticket = await world.ticket(kind, *items)
        return f"{base}/{ticket}/{verb}", body

    return ask


def _on_token(verb: str) -> Any:
    async def ask(world: World) -> Asked:
        made = await world.bus.tokens.create("ann", ["read"], actor="app")
        return url("tokens", made.token.token_id, verb), None

    return ask


async def _exempt(world: World) -> Asked:
    return f"{LIMITS}/exemptions", {"user_id": "bob", **REASON}


async def _unexempt(world: World) -> Asked:
    await world.bus.governance.exempt(APP, "eve", "because")
    return f"{LIMITS}/exemptions/eve", None


async def _limits(world: World) -> Asked:
    return f"{LIMITS}/users/bob", {"cooldown_seconds": 1}


ROWS = [{"command_type": "Work", "data": {"n": n}} for n in (1, 2)]
#: What to ask each changing route, by its operationId; a new route must be added here.
ASKING: dict[str, list[Callable[[World], Awaitable[Asked]]]] = {
    "send_command": [_send],
    "cancel_command": [_cancel_command],
    "reschedule_command": [_reschedule],
    "pause_domain": [_pause],
    "resume_domain": [_resume],
    "set_priority": [_set_priority],
    "set_level_worth": [_set_level_worth],
    # The policy comes after it, as with the new one nothing is blocked any more.
    "skip_key": [_skip_key],
    "set_key_policy": [_set_key_policy],
    "create_command_batch": [_create_batch],
    "cancel_command_batch": [
        _on_batch("cancel", REASON, World.batch_of_one),
        _on_load("cancel", REASON),
    ],
    "retry_command_batch": [_on_batch("retry", None, World.parked)],
    "resume_load": [_on_load("resume", {"rows": ROWS})],
    "seal_load": [_on_load("seal", None)],
    "retry_parked": [
        _on_parked("retry", REASON),
        _on_parked("retry", {**REASON, "payload": {"n": 2}}),
    ],
    "cancel_parked": [_on_parked("cancel", REASON)],
    "complete_parked": [_on_parked("complete", REASON)],
    "note_command": [_on_parked("notes", {"text": "hm"})],
    "note_failure_group": [_on_group("note", {"text": "hm"})],
    "assign_failure_group": [_on_group("assignee", {"assignee": "bob"})],
    "preview_bulk": [_preview],
    "preview_edit": [_preview_edit],
    "start_bulk": [_start_bulk],
    "stop_bulk": [_stop_bulk],
    "resume_bulk": [_resume_bulk],
    "put_schedule": [_on_schedule("", {"command_type": "Look", "data": {}, "every_seconds": 60})],
    "delete_schedule": [_on_schedule("")],
    "pause_schedule": [_on_schedule("pause", REASON)],
    "resume_schedule": [_on_schedule("resume")],
    "trigger_schedule": [_on_schedule("trigger")],
    "set_domain_limit": [_on_limit()],
    "set_type_limit": [_on_limit("Seldom")],
    "clear_domain_limit": [_on_limit(is_set=True)],
    "clear_type_limit": [_on_limit("Seldom", is_set=True)],
    "lease_replies": [_lease],
    "acknowledge_replies": [_ack],
    "submit_batch": [_submit_any],
    "submit_vms_batch": [_submit],
    "submit_vms_batch_power": [_power],
    "submit_approvals_batch": [_approve],
    "decide_batch": [_decide("approve"), _decide("reject")],
    "decide_edit": [_decide_edit("approve"), _decide_edit("reject")],
    "retry_batch": [_on_ticket(BATCHES, "retry", None)],
    "cancel_batch": [_on_ticket(BATCHES, "cancel", REASON)],
    "retry_vms_batch": [_on_ticket(VMS, "retry", REASON)],
    "cancel_vms_batch": [_on_ticket(VMS, "cancel", REASON)],
    "retry_approvals_batch": [_on_ticket(APPROVALS, "retry", None)],
    "cancel_approvals_batch": [_on_ticket(APPROVALS, "cancel", REASON)],
    "revoke_token": [_on_token("revoke")],
    "rotate_token": [_on_token("rotate")],
    "exempt_user": [_exempt],
    "unexempt_user": [_unexempt],
    "set_user_limits": [_limits],
    # These go on in the background, so nothing comes after them.
    "start_doctor": [_start_doctor],
    "fix_findings": [_fix_findings],
}
