"""`tsq edit`: parked commands with a corrected payload: one, or one change for many."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from commandbus.cli.bulk import decide
from commandbus.cli.frame import Frame, Session, View
from commandbus.cli.options import Again, OneCommand, Payload, parse_json
from commandbus.cli.output import escaped, say
from commandbus.cli.show import edit_phrases
from commandbus.cli.tsq_choice import Choice
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.troubleshooting.model import BulkVerb, EditExample, EditPreview
from commandbus.troubleshooting.patch import JsonPatch, MergePatch, PayloadEdit


@dataclass(frozen=True, slots=True)
class Change:
    """One change for every payload that was chosen."""

    merge_patch: Annotated[
        str | None,
        typer.Option(
            "--merge-patch",
            metavar="JSON",
            help="The fields to set, null to remove (RFC 7396); @FILE reads a file, - stdin.",
        ),
    ] = None
    patch: Annotated[
        str | None,
        typer.Option(
            "--patch", metavar="JSON", help="Operations (RFC 6902); @FILE reads a file, - stdin."
        ),
    ] = None
    preview: Annotated[
        bool, typer.Option("--preview", help="Only show what it would change, secrets masked.")
    ] = False
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", help="Commands that a preview shows.")
    ] = 10

    def read(self) -> PayloadEdit | None:
        """The change; None if there is none."""
        if self.merge_patch is not None and self.patch is not None:
            raise InvalidInputError("--merge-patch and --patch are two changes; use one of them")
        if self.merge_patch is not None:
            return MergePatch(_document(self.merge_patch, "--merge-patch"))
        return None if self.patch is None else JsonPatch(_document(self.patch, "--patch"))


def _document(text: str, option: str) -> Any:
    if text == "-":
        return parse_json(sys.stdin.read(), "stdin")
    if not text.startswith("@"):
        return parse_json(text, option)
    return Payload(data_file=Path(text[1:])).read()


async def edit(
    frame: Frame, choice: Choice, payload: Payload, change: Change, again: Again
) -> View:
    """Send parked commands again with an edited payload: one, or one change for many.

    One command: begin with what `tsq show ID --payload --json` prints; fields that are left masked
    keep their real values. Many: --merge-patch or --patch is applied to each payload; --preview
    shows the difference first. Commands that it cannot be applied to stay parked.
    """
    edited, wanted = payload.read(), change.read()
    if (edited is None) == (wanted is None):
        raise InvalidInputError(
            "give the new payload of one command with --data or --data-file, or one change for "
            "many with --merge-patch or --patch"
        )
    arguments: dict[str, Any] = {"reset_attempts": not again.keep_attempts}
    if wanted is None:
        return await _edit_one(frame, choice, again, arguments, edited)
    if change.preview or choice.dry_run:
        async with frame.open() as session:
            return await _preview(session, choice, wanted, change.examples)
    return await decide(
        frame, choice, BulkVerb.RETRY, again.operator,
        {**arguments, "reason": again.reason, "edit": wanted},
    )  # fmt: skip


async def _edit_one(
    frame: Frame, choice: Choice, again: Again, arguments: dict[str, Any], edited: Any
) -> View:
    if choice.only_id is None:
        raise InvalidInputError("--data is the whole payload of one command; name its id, no more")
    async with frame.open() as session:
        domain, wanted = await session.find(OneCommand(choice.only_id, choice.domain))
        queue = session.bus.troubleshooting
        is_sent = await queue.retry(
            domain, wanted, payload=edited, operator=again.operator, **arguments
        )
        if again.reason is not None:
            await queue.note(domain, wanted, again.reason, operator=again.operator)
    became = "is queued again, edited"
    if not is_sent:
        became = "stays parked: it belongs to a governed batch, and its edit waits for an approval"
    return View.line(f"{wanted} {became}", domain=domain, command_id=wanted)


async def _preview(session: Session, choice: Choice, wanted: PayloadEdit, examples: int) -> View:
    chosen = await choice.filter(session)
    preview = await session.bus.bulk.preview_edit(chosen, wanted, examples=examples)
    if not preview.total:
        raise InvalidOperationError(f"nothing in troubleshooting of {chosen.domain!r} matches")
    return View(preview, lambda: _print_preview(preview))


def _print_preview(preview: EditPreview) -> None:
    for example in preview.examples:
        say(f"{example.command_id}  {escaped(_example_text(example))}")
    for reason, count in preview.failures.items():
        say(f"[yellow]{count:,} would stay parked[/]: {escaped(reason)}")
    of_first = "" if preview.looked_at == preview.total else f"of the first {preview.looked_at:,}, "
    say(
        f"{preview.total:,} commands of {preview.domain} match; {of_first}{preview.changed:,} "
        f"would be changed, {preview.unchanged:,} would be sent again as they are, "
        f"{preview.failed:,} would stay parked. None was touched."
    )


def _example_text(example: EditExample) -> str:
    if example.failure is not None:
        return f"stays parked: {example.failure}"
    return "; ".join(edit_phrases(example.changes)) or "stays as it is"
