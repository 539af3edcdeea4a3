"""Sentry with its Django integration and our middleware: what both report, printed as JSON.

`python reporting.py` enqueues tasks in a transaction of Sentry, and works them off.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config")

import config  # type: ignore[import-not-found]
import django
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.transport import Transport


class Recording(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        found = envelope.get_event() or envelope.get_transaction_event()
        if found is not None:
            self.kept.append(found)


recording = Recording()
sentry_sdk.init(
    dsn="https://key@sentry.invalid/1", transport=recording, traces_sample_rate=1.0,
    integrations=[DjangoIntegration()], auto_enabling_integrations=False,
)  # fmt: skip
config.TASKS["default"]["OPTIONS"] = {
    "retry_policy": {"max_attempts": 2, "backoff_schedule": [0.1]}
}
django.setup()

from shop import tasks  # noqa: E402

from commandbus import CommandBus  # noqa: E402
from commandbus.django.conf import configuration  # noqa: E402
from commandbus.django.discovery import gathered  # noqa: E402
from commandbus.django.hygiene import prepare_worker  # noqa: E402
from commandbus.django.migrating import dsn_of  # noqa: E402


async def work() -> None:
    prepare_worker()
    settings = configuration().bus_settings
    async with CommandBus.connect(dsn_of("default"), settings=settings, handlers=gathered()) as own:
        for domain in ("tasks", "tasks_mail"):
            await own.run_worker(domain, until_empty=True, include_delayed=True)


def main() -> None:
    with sentry_sdk.start_transaction(op="test", name="a request") as request:
        made = {
            "fails": tasks.fails.enqueue(),
            "add": tasks.add.enqueue(1, second=2),
            "attempts": tasks.attempts.enqueue(),
        }
    asyncio.run(work())
    sentry_sdk.flush()
    print(
        json.dumps(
            {
                "trace_id": request.trace_id,
                "made": {name: result.id for name, result in made.items()},
                "kept": recording.kept,
            },
            default=str,
        )
    )


main()
