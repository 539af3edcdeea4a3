"""The plugin as projects meet it: pytest runs in a process of its own, in a folder of its own."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from tests.conftest import TEST_DSN, Server

pytest_plugins = ["pytester"]

#: Plugins that these projects do not have, and that take seconds to load.
OTHERS = [f"-pno:{name}" for name in ("schemathesis", "hypothesispytest", "cacheprovider")]
NO_ASYNC = ["-pno:asyncio", "-pno:anyio"]
QUIET = ["-q", *OTHERS, "-W", "error"]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty project; its runs are no processes of ours."""
    for name in ("PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


@pytest.fixture
def with_server(
    project: pytest.Pytester, server: Server, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A project that is told which server to use."""
    monkeypatch.setenv(TEST_DSN, server.address)
    return project


def test_the_plugin_loads_nothing_and_takes_no_time_until_a_fixture_is_used() -> None:
    program = """
import pytest, sys, time
took = []
for _ in range(5):
    for name in [name for name in sys.modules if name.split(".")[0] == "commandbus"]:
        del sys.modules[name]
    began = time.process_time()
    import commandbus.testing.plugin
    took.append(time.process_time() - began)
assert min(took) <= 0.005, took
ours = {name for name in sys.modules if name.split(".")[0] in ("commandbus", "psycopg", "orjson")}
assert ours <= {"commandbus", "commandbus._version", "commandbus.testing",
                "commandbus.testing.plugin"}, ours
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_project_that_tests_no_bus_starts_no_server(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_nothing():
            assert "commandbus.bus" not in sys.modules
            assert "psycopg" not in sys.modules
        """
    )
    project.runpytest_subprocess(*QUIET).assert_outcomes(passed=1)


ISOLATED = """
    import pytest
    from uuid import uuid4

    @pytest.mark.parametrize("number", range({count}))
    def test_each_test_has_its_own_database(number, commandbus_blocking, drain):
        bus = commandbus_blocking
        bus.register_handler("payments", "Debit", lambda command, ctx: command.data)
        command = bus.send("payments", "Debit", uuid4(), {{"number": number}})
        (only,) = drain(bus)
        assert (only.command_id, only.result) == (command, {{"number": number}})
        assert only.outcome == "completed"
"""


@pytest.mark.long
def test_processes_in_parallel_share_one_server_and_no_database(project: pytest.Pytester) -> None:
    project.makepyfile(ISOLATED.format(count=8))
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def say_where(commandbus_server):
            with open("servers.txt", "a") as file:
                file.write(commandbus_server.address + "\\n")
        """
    )

    found = project.runpytest_subprocess(*QUIET, "-n", "4", "-p", "randomly")

    found.assert_outcomes(passed=8)
    addresses = (project.path / "servers.txt").read_text().splitlines()
    assert len(addresses) == 4
    assert len(set(addresses)) == 1
    with pytest.raises(psycopg.OperationalError):  # it ended with the run
        psycopg.connect(addresses[0])


def test_a_run_may_have_any_id(with_server: pytest.Pytester) -> None:
    with_server.makepyfile(ISOLATED.format(count=2))
    options = ("-n", "1", "--testrunuid=ci-4711/main")
    with_server.runpytest_subprocess(*QUIET, *options).assert_outcomes(passed=2)


#: On PostgreSQL the time is the server's.
FROZEN = """
    import datetime as module
    import sys
    import time

    class Frozen(module.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2001, 1, 1, tzinfo=tz)

    def test_a_clock_that_python_froze_changes_nothing(commandbus_blocking, drain, monkeypatch):
        bus = commandbus_blocking
        bus.register_handler("payments", "Debit", lambda command, ctx: None)
        bus.send("payments", "Debit", uuid4(), {})
        drain(bus)
        monkeypatch.setattr(time, "time", lambda: 978307200.0)
        for name, loaded in list(sys.modules.items()):
            if name.startswith("commandbus.") and "datetime" in vars(loaded):
                monkeypatch.setattr(loaded, "datetime", Frozen)
        now = bus.send("payments", "Debit", uuid4(), {})
        later = bus.send("payments", "Debit", uuid4(), {}, delay=60)
        assert [each.command_id for each in drain(bus)] == [now]
        assert bus.get_command("payments", now).created_at.year > 2001
        assert [each.command_id for each in drain(bus, skip_waits=True)] == [later]
"""


def test_a_project_without_plugins_for_async_has_the_plain_fixtures(
    with_server: pytest.Pytester, server: Server
) -> None:
    with_server.makepyfile(
        ISOLATED.format(count=2)
        + """
    def test_in_memory(commandbus_fake_blocking, drain):
        from commandbus.testing import sent, store_of

        bus = commandbus_fake_blocking
        bus.register_handler("payments", "Debit", lambda command, ctx: {"done": True})
        bus.send("payments", "Debit", uuid4(), {"amount": 5}, delay=60)
        assert drain(bus) == []
        store_of(bus).clock.advance(60)
        assert [each.result for each in drain(bus)] == [{"done": True}]
        assert [each.data for each in sent(bus, "payments")] == [{"amount": 5}]

    def test_forgets_a_connection(commandbus_dsn):
        import psycopg

        kept.append(psycopg.connect(commandbus_dsn))

    kept = []

    def test_wrong_one(commandbus_bus):
        pass
"""
        + FROZEN
    )

    found = with_server.runpytest_subprocess("-q", *OTHERS, *NO_ASYNC)

    found.assert_outcomes(passed=5, errors=1)
    found.stdout.fnmatch_lines(["*commandbus_bus is for asynchronous tests*commandbus_blocking*"])


def test_no_database_outlives_the_run_however_its_test_ended(
    with_server: pytest.Pytester, server: Server
) -> None:
    with_server.makepyfile(
        """
        import psycopg
        import pytest

        kept = []

        def connected(dsn):
            conn = psycopg.connect(dsn)
            kept.append(conn)  # somebody is still connected when the database is dropped
            with open("databases.txt", "a") as file:
                file.write(conn.info.dbname + "\\n")

        def test_that_passes(commandbus_dsn):
            connected(commandbus_dsn)

        def test_that_fails(commandbus_dsn):
            connected(commandbus_dsn)
            assert False

        @pytest.fixture
        def broken(commandbus_dsn):
            connected(commandbus_dsn)
            raise RuntimeError

        def test_that_does_not_begin(broken):
            pass

        def test_that_closes_its_bus(commandbus_dsn, commandbus_blocking):
            connected(commandbus_dsn)
            commandbus_blocking.close()
        """
    )

    found = with_server.runpytest_subprocess("-q", *OTHERS, *NO_ASYNC)

    found.assert_outcomes(passed=2, failed=1, errors=1)
    names = (with_server.path / "databases.txt").read_text().split()
    assert len(names) == 4
    with server.admin() as admin:
        left = admin.execute("select datname from pg_database where datname = any(%s)", (names,))
        assert left.fetchall() == []


ASYNC = """
    import pytest
    from uuid import uuid4

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    async def run(bus, drain):
        async def debit(command, ctx):
            return {"amount": command.data["amount"]}

        bus.register_handler("payments", "Debit", debit)
        await bus.send("payments", "Debit", uuid4(), {"amount": 5}, delay=3600)
        assert await drain(bus) == []
        (only,) = await drain(bus, "payments", skip_waits=True)
        assert (only.outcome, only.result, only.attempt) == ("completed", {"amount": 5}, 1)
"""


def test_an_open_bus_is_on_the_loop_of_its_test_whoever_runs_that(
    with_server: pytest.Pytester,
) -> None:
    with_server.makepyfile(
        ASYNC
        + """
    @pytest.mark.asyncio
    async def test_pytest_asyncio(commandbus_bus, commandbus_fake, drain):
        await run(commandbus_bus, drain)
        await run(commandbus_fake, drain)

    @pytest.mark.asyncio(loop_scope="module")
    async def test_a_loop_of_the_module(commandbus_bus, drain):
        await run(commandbus_bus, drain)

    @pytest.mark.anyio
    async def test_anyio(commandbus_bus, drain):
        await run(commandbus_bus, drain)
"""
    )
    with_server.runpytest_subprocess(*QUIET).assert_outcomes(passed=3)


@pytest.mark.long
def test_a_template_of_the_project_has_its_tables_too(with_server: pytest.Pytester) -> None:
    with_server.makeconftest(
        """
        import psycopg
        import pytest

        @pytest.fixture(scope="session")
        def commandbus_template(commandbus_server, commandbus_template):
            with psycopg.connect(commandbus_server.dsn_for(commandbus_template)) as conn:
                conn.execute("create table orders (id int)")
            return commandbus_template
        """
    )
    with_server.makepyfile(
        """
        import psycopg
        import pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_orders_are_there_and_empty(number, commandbus_dsn, commandbus_blocking):
            with psycopg.connect(commandbus_dsn) as conn:
                assert conn.execute("select * from orders").fetchall() == []
                conn.execute("insert into orders values (%s)", (number,))
            commandbus_blocking.check()
        """
    )
    found = with_server.runpytest_subprocess(*QUIET, "-n", "2")
    found.assert_outcomes(passed=2)


def test_a_server_that_does_not_answer_is_named_with_its_variable(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TEST_DSN, "host=/nowhere user=nobody password=s3cret dbname=none")
    project.makepyfile("def test_it(commandbus_dsn): pass")
    found = project.runpytest_subprocess("-q", *OTHERS)
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["E *InvalidSettingError: COMMANDBUS_TEST_DSN names a server*"])
