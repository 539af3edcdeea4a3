"""A process with a BlockingBus that was never closed comes to its end, in every way to end one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tests.waiting import until_sync

SITE = Path(__file__).with_name("site")
#: Far more than any of these needs: a process that hangs would hang without limit.
PATIENCE = 120

OPEN = """
    import os, sys, threading
    from uuid import uuid4
    from commandbus import BlockingBus
    bus = BlockingBus.connect(os.environ["COMMANDBUS_DSN"])
    bus.send("site", "Visit", uuid4(), {})
"""


def environment(dsn: str, **more: str) -> dict[str, str]:
    return {**os.environ, "COMMANDBUS_DSN": dsn, **more}


def run(script: str, dsn: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OPEN) + textwrap.dedent(script)],
        env=environment(dsn), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def sent(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select count(*) from commandbus.command_bus_command").fetchone()
    return int(row[0]) if row else 0


def connections(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'"
        ).fetchone()
    return int(row[0]) if row else 0


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("", 0),
        ("entered = BlockingBus.connect().__enter__()", 0),
        ("sys.exit(3)", 3),
        ("raise KeyError('a mistake of the application')", 1),
        # a reference cycle that only the end of the interpreter collects, and a loop left half-way
        ("replies = bus.replies('site', wait=True); sys.modules['kept'] = (bus, replies)", 0),
        (
            """
            import time
            threading.Thread(target=bus.run_worker, args=("site",), daemon=True).start()
            while not bus._bus._workers.running:
                time.sleep(0.01)
            """,
            0,
        ),
        (
            """
            class Late:
                def __del__(self):
                    try:
                        bus.check()
                    except Exception:
                        pass
            sys.modules["late"] = Late()
            """,
            0,
        ),
    ],
    ids=["end", "entered", "exit", "error", "kept", "worker", "used-while-ending"],
)
def test_a_script_that_does_not_close_its_bus_ends(script: str, code: int, dsn: str) -> None:
    done = run(script, dsn)
    assert done.returncode == code, done.stderr
    assert "commandbus" not in done.stderr.replace("BlockingBus", ""), done.stderr
    until_sync(lambda: connections(dsn) == 0)


def test_a_script_that_sends_on_its_own_connection_has_no_loop_and_ends_at_once(dsn: str) -> None:
    done = run(
        """
        import atexit, time
        import psycopg
        atexit.register(lambda: print(time.monotonic() - ended))  # the first is the last
        direct = BlockingBus.connect(os.environ["COMMANDBUS_DSN"])
        bus.close()
        with psycopg.connect(os.environ["COMMANDBUS_DSN"]) as conn:
            direct.send("site", "Visit", uuid4(), {}, conn=conn)
            assert [each.name for each in threading.enumerate()] == ["MainThread"]
        direct.check()  # now it has a loop, which nobody closes
        ended = time.monotonic()
        """,
        dsn,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2, done.stdout
    assert sent(dsn) == 2


def test_a_forked_process_opens_its_own_and_leaves_that_of_its_parent_alone(dsn: str) -> None:
    done = run(
        """
        child = os.fork()
        if not child:
            bus.send("site", "Visit", uuid4(), {})
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        bus.send("site", "Visit", uuid4(), {})
        """,
        dsn,
    )
    assert done.returncode == 0, done.stderr
    assert sent(dsn) == 3
    until_sync(lambda: connections(dsn) == 0)


def test_a_fork_while_other_threads_use_the_bus_leaves_no_lock_behind(dsn: str) -> None:
    done = run(
        """
        going = True
        def use():
            while going:
                bus.check()
        users = [threading.Thread(target=use) for _ in range(3)]
        [user.start() for user in users]
        for _ in range(5):
            child = os.fork()
            if not child:
                bus.check()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        going = False
        """,
        dsn,
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_wait(dsn: str) -> None:
    # A process that was started in the background may have been told to ignore it.
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    wait = "print('ready', flush=True); bus.run_worker('site')"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{hear}\n{textwrap.dedent(OPEN)}{wait}"],
        env=environment(dsn), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert "KeyboardInterrupt" in errors
    until_sync(lambda: connections(dsn) == 0)


@pytest.mark.long
def test_the_embedded_server_of_a_script_that_does_not_close_its_bus_is_stopped() -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # root's server runs as another account
    script = """
        import sys
        from pathlib import Path
        from commandbus import BlockingBus
        bus = BlockingBus.connect(data_dir=Path(sys.argv[1]) / "pg")
        bus.check()
        assert list(Path(sys.argv[1]).rglob("postmaster.pid"))
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(folder)],
            env={key: value for key, value in os.environ.items() if key != "COMMANDBUS_DSN"},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert not list(folder.rglob("postmaster.pid"))
    finally:
        shutil.rmtree(folder)


# -- Django and gunicorn


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    command: list[str], dsn: str, log: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process in a group of its own; killed at the end if it still runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=SITE, env=environment(dsn, **more), stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def visit(port: int) -> str | None:
    """Which process answered, once one does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            words = answer.read().decode().split()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return None
    return words[0] if words else None  # a server that ends may send nothing


def until_visited(port: int) -> str:
    answers: list[str] = []

    def try_once() -> bool:
        if (answer := visit(port)) is not None:
            answers.append(answer)
        return bool(answers)

    until_sync(try_once, timeout=PATIENCE)
    return answers[0]


@pytest.mark.long
def test_manage_test_ends_though_the_bus_stays_open(dsn: str) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "test", "--pattern", "visits.py"], cwd=SITE,
        env=environment(dsn), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr
    assert sent(dsn) == 1


@pytest.mark.long
def test_runserver_serves_reloads_and_ends(dsn: str, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "manage.py", "runserver", f"127.0.0.1:{port}"]
    with serving(command, dsn, tmp_path / "log") as server:
        first = until_visited(port)
        os.utime(SITE / "manage.py")  # a changed file: the process that serves ends, another begins

        def is_another() -> bool:
            return visit(port) not in {None, first}

        until_sync(is_another, timeout=PATIENCE)
        os.killpg(server.pid, signal.SIGINT)
        server.wait(PATIENCE)
    until_sync(lambda: connections(dsn) == 0)


@pytest.mark.long
@pytest.mark.parametrize("opened", ["", "1"], ids=["opened-by-a-worker", "opened-before-the-fork"])
def test_gunicorn_forks_workers_that_send_and_ends(dsn: str, tmp_path: Path, opened: str) -> None:
    port = free_port()
    command = [
        sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--threads", "2",
        "--bind", f"127.0.0.1:{port}", "manage:application",
    ]  # fmt: skip
    with serving(command, dsn, tmp_path / "log", OPEN_AT_IMPORT=opened) as server:
        seen = {until_visited(port)}

        def both() -> bool:
            seen.add(until_visited(port))
            return len(seen) == 2

        until_sync(both, timeout=PATIENCE)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    until_sync(lambda: connections(dsn) == 0)
