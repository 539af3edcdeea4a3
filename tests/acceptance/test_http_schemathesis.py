"""The service answers whatever its own OpenAPI document allows, and much that it does not allow,
as that document says: no answer of 500 or more, no answer of another form.

SCHEMATHESIS_REQUESTS says how many requests; `make test-e2e` sends 5,000. SCHEMATHESIS_PARTS says
in how many parts, each with a service and a seed of its own, which may run side by side.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    not_a_server_error,
)
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from commandbus import BatchCommand, CommandBus, HandlerContext, PermanentCommandError
from commandbus.access.model import Caller, Scope
from commandbus.database.model import Failure
from commandbus.demo import vms
from commandbus.http import HttpSettings
from commandbus.models import Command
from tests.http_server import Served, served
from tests.integration.http_shop import group_of
from tests.waiting import working

pytestmark = pytest.mark.long

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
SEED = int(os.environ.get("SCHEMATHESIS_SEED", "20261116"))
PARTS = int(os.environ.get("SCHEMATHESIS_PARTS", "1"))
REQUESTS = -(-int(os.environ.get("SCHEMATHESIS_REQUESTS", "300")) // PARTS)


async def fail(command: Command, ctx: HandlerContext) -> None:
    raise PermanentCommandError("NO", "never")


async def ok(command: Command, ctx: HandlerContext) -> dict[str, int]:
    return {"done": 1}


async def prepare(bus: CommandBus) -> dict[str, Any]:
    """Something of everything, so that requests find what they ask for."""
    bus.register_handler("shop", "Fail", fail)
    bus.register_handler("shop", "Work", ok)
    await bus.send("shop", "Work", uuid4(), {"password": "hunter2"})
    parked = [uuid4() for _ in range(5)]
    for command_id in parked:
        await bus.send("shop", "Fail", command_id, {"n": 1})
    batch = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {}) for _ in range(3)])
    return {"command_id": parked, "batch_id": [batch, *await prepare_governed(bus)]}


async def prepare_governed(bus: CommandBus) -> list[UUID]:
    """The virtual machines, and batches that are pending, failing and waiting for an approval."""
    await vms.setup(bus)
    ada = Caller("ada", frozenset({Scope.SUBMIT}))
    made = []
    async with working(bus, "vms"):
        for batch_type in ("BATCH_CREATE", "BATCH_POWER_RESTART", "BATCH_DELETE"):
            done = await bus.governance.submit(ada, batch_type, [{"name": "web-1"}])
            made.append(done.ticket.ticket_id)
            if batch_type == "BATCH_CREATE":
                await bus.governance.wait(ADMIN, made[0], seen=None, timeout=30)
    return made


ADMIN = Caller("root", frozenset({Scope.ADMIN}))
#: Nobody waits for long: most of what is asked for never comes.
SHORT = HttpSettings(
    port=0, max_wait_seconds=0.2, max_stream_seconds=1,
    # One caller asks as much as a thousand would: requests must reach the code.
    user_share=1, token_share=1, max_user_requests=10**8, max_user_commands=10**9,
    max_user_body_bytes=10**12,
)  # fmt: skip


# The workers in the other thread draw random waits of their own.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_answer_is_one_that_the_openapi_document_describes(dsn: str, part: int) -> None:
    began = time.monotonic()
    with served(dsn, prepare, SHORT, workers=True) as service:
        fuzzer = Fuzzer(service, SEED + 1_000_000 * part)
        while sum(fuzzer.answers.values()) < REQUESTS:
            fuzzer.ask_all()

    answers = fuzzer.answers
    rate = sum(answers.values()) / (time.monotonic() - began)
    print(
        f"{sum(answers.values())} answers, {rate:.0f} a second: {dict(sorted(answers.items()))}, "
        f"{fuzzer.waits} waits for a limit"
    )
    assert answers[200] + answers[202] > REQUESTS / 10
    assert max(answers) < 500


class Fuzzer:
    """Asks every operation, with what it takes and with what it should refuse."""

    def __init__(self, service: Served, first_seed: int) -> None:
        self.answers: Counter[int] = Counter()
        self.waits = 0
        self._seed = first_seed
        self._service = service
        self._session = requests.Session()
        document = requests.get(f"{service.url}/openapi.json", timeout=10).json()
        schema = schemathesis.openapi.from_dict(document)
        self._operations = [cast("Any", found).ok() for found in schema.get_all_operations()]
        self._share = 2
        self._round = 0
        self._known = {
            "domain": st.just("shop"),
            "command_id": st.sampled_from([str(each) for each in service.prepared["command_id"]]),
            "batch_id": st.sampled_from([str(each) for each in service.prepared["batch_id"]]),
            "some_id": st.sampled_from([str(each) for each in service.prepared["command_id"]]),
            "fingerprint": st.just(group_of("shop", Failure("PERMANENT", "NO", "never"))),
        }

    def ask_all(self) -> None:
        self._round += 1
        left = REQUESTS - sum(self.answers.values())
        self._share = max(2, left // (2 * len(self._operations)) + 1)
        for operation in self._operations:
            if self._round > 1 and sum(self.answers.values()) >= REQUESTS:
                return
            self._ask(operation, GenerationMode.POSITIVE)
            # An operation without parameters has nothing that could be wrong.
            with suppress(Unsatisfiable):
                self._ask(operation, GenerationMode.NEGATIVE)

    def _ask(self, operation: Any, mode: GenerationMode) -> None:
        @seed(self._seed + self._round)
        @settings(
            max_examples=self._share,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(data=st.data())
        def ask(data: st.DataObject) -> None:
            case = data.draw(operation.as_strategy(generation_mode=mode))
            for name, values in self._known.items():
                if name in (case.path_parameters or {}) and data.draw(st.booleans()):
                    case.path_parameters[name] = data.draw(values)
            response = self._call(case)
            self.answers[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        ask()

    def _call(self, case: Any) -> Any:
        """One request; asked again after the time that a 429 names, so that it reaches the code."""
        response: Any = None
        for _ in range(5):
            response = case.call(
                base_url=self._service.url, session=self._session, headers=self._service.headers
            )
            wait = int(response.headers.get("Retry-After", ["0"])[0])
            if response.status_code != 429 or wait > 60:
                return response
            self.waits += 1
            time.sleep(wait)
        return response
