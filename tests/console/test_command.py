"""One command in the console: its life, what can be done, edits; and the list of commands."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg

from commandbus import CommandBus, CommandStatus, PermanentCommandError
from tests.console.world import console
from tests.parking import park

OPERATOR = ("read", "operate", "read-payload")
HOSTILE = "<img src=x onerror=alert(1)>"


async def parked(bus: CommandBus) -> UUID:
    """A command that a handler has refused, with a secret in its payload."""

    @bus.handler("shop", "Pay")
    async def pay(command: Any, context: Any) -> None:
        raise PermanentCommandError("NO_ACCOUNT", f"no account {HOSTILE}")

    command_id = uuid4()
    data = {"account": 7, "note": HOSTILE, "api_key": "sk-very-secret-1", "big": 2**53 - 1}
    await bus.send("shop", "Pay", command_id, data)
    await bus.run_worker("shop", until_empty=True)
    return command_id


async def status_of(bus: CommandBus, command_id: UUID) -> CommandStatus:
    return (await bus.search.require("shop", command_id)).status


async def test_a_life_is_told_in_words_and_steps_without_secrets(bus: CommandBus) -> None:
    here = f"/commands/shop/{await parked(bus)}"
    async with console(bus, *OPERATOR) as browser:
        page = await browser.text(here)
        payload = await browser.text(f"{here}/payload")
        regions = await browser.regions(here)
    async with console(bus, "read") as browser:
        reader = await browser.text(here)
        denied = await browser.get(f"{here}/payload")

    assert "after 1 attempt: NO_ACCOUNT" in page
    for word in ("Sent", "A worker began", "Failed", "Parked for a decision", "Attempts"):
        assert word in regions["life"] + regions["facts"]
    assert "9007199254740991" in payload
    for each in (page, payload, reader):
        assert HOSTILE not in each
        assert "sk-very-secret-1" not in each
    assert "needs the scope read-payload" in reader
    assert "/do/" not in reader
    assert denied.status_code == 403
    assert "read-payload" in denied.text


async def test_who_does_not_reach_the_domain_or_invents_an_id_finds_nothing(
    bus: CommandBus,
) -> None:
    command_id = await parked(bus)
    async with console(bus, *OPERATOR, domains=("other",)) as browser:
        hidden = await browser.get(f"/commands/shop/{command_id}")
        listed = await browser.text("/commands")
    async with console(bus, *OPERATOR) as browser:
        none = await browser.get(f"/commands/shop/{uuid4()}")

    assert (hidden.status_code, none.status_code) == (404, 404)
    assert str(command_id) not in listed


async def test_each_act_is_done_once_with_actor_and_reason(bus: CommandBus) -> None:
    command_id = await parked(bus)
    here = f"/commands/shop/{command_id}"
    async with console(bus, *OPERATOR) as browser:
        ask = await browser.text(f"{here}/do/cancel")
        forged = await browser.post(f"{here}/do/cancel", reason="x")
        empty = await browser.submit(ask, "/do/cancel")
        await browser.submit(here, "/note", text="asked the bank")
        done = await browser.submit(ask, "/do/cancel", reason="closed account")
        late = await browser.submit(ask, "/do/cancel", reason="closed account")
        other = await browser.get(f"{here}/do/note")
    trail = await bus.get_audit_trail("shop", command_id)

    assert "no undo" in ask
    assert (forged.status_code, empty.status_code, other.status_code) == (403, 400, 404)
    assert done.status_code == 303
    assert late.status_code == 409
    assert "Nothing was done" in late.text
    assert "Canceled by a person" in late.text
    assert await status_of(bus, command_id) is CommandStatus.CANCELED
    [act] = [each for each in trail if each.event_type == "OPERATOR_CANCEL"]
    assert act.actor == "ann"
    assert "closed account" in str(act.details)
    assert [each.actor for each in trail if each.event_type == "NOTE"] == ["ann"]


async def test_retry_complete_and_the_cancel_of_a_pending_one(bus: CommandBus) -> None:
    first, second = await parked(bus), uuid4()
    await bus.send("shop", "Later", second, {})
    async with console(bus, *OPERATOR) as browser:
        await browser.submit(f"/commands/shop/{first}/do/retry", "/do/retry", reason="again")
        again = await status_of(bus, first)
        await bus.run_worker("shop", until_empty=True)
        await browser.submit(f"/commands/shop/{first}/do/complete", "/do/complete", reason="done")
        third = uuid4()
        await bus.send("shop", "Later", third, {})
        page = await browser.text(f"/commands/shop/{third}")
        where = f"/commands/shop/{third}/do/cancel_pending"
        await browser.submit(where, "/do/cancel_pending", reason="not wanted")

    assert again is CommandStatus.PENDING
    assert await status_of(bus, first) is CommandStatus.COMPLETED
    assert await status_of(bus, third) is CommandStatus.CANCELED
    assert "cancel_pending" in page
    assert "/do/retry" not in page


async def test_an_edit_keeps_what_is_masked_and_large_numbers(bus: CommandBus) -> None:
    command_id = await parked(bus)
    here = f"/commands/shop/{command_id}"
    async with console(bus, *OPERATOR) as browser:
        edit = await browser.text(f"{here}/edit")
        wrong = await browser.submit(edit, "/edit", payload='{"account": ')
        text = '{"account": 8, "note": "ok", "api_key": "***", "big": 9007199254740991}'
        mask = await bus.search.payload("shop", command_id)
        shown = await browser.submit(edit, "/edit", payload=text.replace("***", mask["api_key"]))
        done = await browser.submit(shown.text, "/send", reason="right account")
        late = await browser.submit(shown.text, "/send", reason="right account")
    async with console(bus, "read", "operate") as browser:
        denied = await browser.get(f"{here}/edit")

    assert "sk-very-secret-1" not in edit
    assert wrong.status_code == 400
    assert "this is no JSON" in wrong.text
    assert '<div class="new">+   &#34;account&#34;: 8,</div>' in shown.text
    assert '<div class="gone">\N{MINUS SIGN}   &#34;account&#34;: 7,</div>' in shown.text
    assert done.status_code == 303
    assert late.status_code == 409
    assert denied.status_code == 403
    sent = await bus._store.get_payload("shop", command_id)
    assert "sk-very-secret-1" in str(sent)
    assert "9007199254740991" in str(sent)


async def test_what_it_had_before_and_what_was_replied_are_shown_masked_to_those_who_may(
    bus: CommandBus,
) -> None:
    command_id = await parked(bus)
    here = f"/commands/shop/{command_id}"
    trace = "0af7651916cd43dd8448eb211c80319c"
    await bus.troubleshooting.retry(
        "shop", command_id, operator="eve", payload={"account": 8, "api_key": "sk-very-secret-2"}
    )

    @bus.handler("shop", "Done")
    async def do(command: Any, context: Any) -> dict[str, Any]:
        return {"receipt": HOSTILE, "api_key": "sk-very-secret-3"}

    done = uuid4()
    meta = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    await bus.send("shop", "Done", done, {})
    await bus.run_worker("shop", until_empty=True)
    traced = await bus.send("shop", "Later", uuid4(), {}, meta=meta)
    async with console(bus, *OPERATOR) as browser:
        edited = await browser.text(f"{here}/payload")
        raw = await browser.text(f"{here}/payload", form="raw")
        wrong = await browser.get(f"{here}/payload", form="hex")
        replied = await browser.text(f"/commands/shop/{done}/payload")
        facts = (await browser.regions(f"/commands/shop/{done}"))["facts"]
        page = await browser.text(f"/commands/shop/{traced}")
    async with console(bus, "read") as browser:
        reader = await browser.text(f"/commands/shop/{done}")
        denied = await browser.get(f"/commands/shop/{done}/payload")

    assert "edited by eve" in edited
    assert edited.index("&#34;account&#34;: 8") < edited.index("&#34;account&#34;: 7")
    assert "{&#34;account&#34;:8," in raw
    assert "follows when it ends" in edited
    assert "What was answered" in replied
    assert "waits to be taken" in replied
    assert "waits to be taken" in facts
    assert trace in page
    assert "waits to be taken" in reader
    assert (denied.status_code, wrong.status_code) == (403, 400)
    for each in (edited, raw, replied, facts, page, reader):
        assert "sk-very-secret" not in each
        assert HOSTILE not in each


# -- the list


async def test_the_list_filters_by_its_address_and_takes_empty_fields(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2, code="<b>DOWN</b>")
    await bus.send("shop", "Later", uuid4(), {})
    async with console(bus, *OPERATOR) as browser:
        both = await browser.text("/commands?domain=&status=&command_type=&error_code=")
        one = await browser.text("/commands", status="PENDING")
        none = await browser.text("/commands", command_type="Nothing")
        found = await browser.get("/commands", q="status:pending type:Later")
        page = await browser.text("/commands", limit=1)
        wrong = await browser.get("/commands", status="HALF")

    assert both.count('data-row="') == 3
    assert "<b>DOWN" not in both
    assert one.count('data-row="') == 1
    assert "None matches" in none
    assert found.headers["location"] == "/console/commands?status=PENDING&command_type=Later"
    assert "cursor=" in page
    assert wrong.status_code == 400


async def test_an_empty_list_says_what_to_do(bus: CommandBus) -> None:
    async with console(bus) as browser:
        assert "No command yet" in await browser.text("/commands")


async def test_chosen_ones_are_canceled_and_the_others_are_named(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 1)
    [waits] = (await bus.search.commands(domain="shop")).items
    pending = uuid4()
    await bus.send("shop", "Later", pending, {})
    chosen = f"shop/{pending},shop/{waits.command_id}"
    async with console(bus, *OPERATOR) as browser:
        ask = await browser.submit("/commands", "/commands/chosen", chosen=chosen)
        done = await browser.submit(ask.text, "/commands/cancel", reason="by mistake")
        nothing = await browser.submit("/commands", "/commands/chosen")
    async with console(bus, "read", "operate", domains=("other",)) as browser:
        foreign = await browser.post("/commands/cancel", chosen=chosen, reason="x")

    assert "Cancel 1 command" in ask.text
    assert "1 command in troubleshooting" in ask.text
    assert done.status_code == 303
    assert nothing.status_code == 400
    assert foreign.status_code == 403
    assert await status_of(bus, pending) is CommandStatus.CANCELED
    assert await status_of(bus, waits.command_id) is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    [event] = (await bus.search.audit(actor="ann", command_id=pending)).items
    assert event.event_type in {"CANCELED", "OPERATOR_CANCEL"}


async def test_an_export_is_a_file_and_in_the_audit(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2, message="=HYPERLINK()")
    async with console(bus) as browser:
        answer = await browser.get("/commands.csv", domain="shop")

    lines = answer.text.splitlines()
    assert len(lines) == 3
    assert "attachment" in answer.headers["content-disposition"]
    [event] = (await bus.search.audit(actor="ann")).items
    assert event.details is not None
    assert event.details["action"] == "commands.export"
