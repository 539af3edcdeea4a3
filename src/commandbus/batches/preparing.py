"""What is said of a batch, checked and encoded before a transaction begins."""

from __future__ import annotations

from uuid import UUID, uuid4

from commandbus.batches.callbacks import check_callback
from commandbus.batches.model import BatchOptions
from commandbus.commands.preparing import Preparer
from commandbus.database.model import NewBatch
from commandbus.names import check_domain, check_operator, check_text, check_uuid
from commandbus.payload import encode_json


def new_batch(
    preparer: Preparer, domain: str, options: BatchOptions, batch_id: UUID | None = None
) -> NewBatch:
    """Check and encode what is said of a batch, for the one transaction or for a load."""
    if unknown := options.keys() - BatchOptions.__annotations__.keys():
        raise TypeError(f"a batch has no option {', '.join(sorted(unknown))}")
    if options.get("on_complete") is not None:
        check_callback(options["on_complete"])
    name, created_by = options.get("name"), options.get("created_by")
    custom_data, closing = options.get("custom_data"), options.get("on_complete_command")
    return NewBatch(
        batch_id=uuid4() if batch_id is None else check_uuid(batch_id, "batch_id"),
        domain=check_domain(domain),
        name=None if name is None else check_text(name, "name", max_length=255),
        custom_data=None if custom_data is None else encode_json(custom_data, what="custom_data"),
        created_by=None if created_by is None else check_text(created_by, "created_by"),
        on_complete=None if closing is None else preparer.closing_command(domain, closing),
        notifies=options.get("on_complete") is not None,
        actor=check_operator(options.get("actor")),
    )
