"""The port of a worker: what it answers, and what clients cannot do to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from commandbus.cli import probe
from commandbus.cli.core import run
from commandbus.errors import InvalidSettingError
from commandbus.monitoring import Monitor
from commandbus.monitoring import server as module
from commandbus.monitoring.server import Address, MonitorServer
from tests.waiting import until_sync


@pytest.fixture
def monitor() -> Monitor:
    made = Monitor()
    made.metrics.know("shop", ["Pack"])
    return made


@pytest.fixture
def port(monitor: Monitor) -> Iterator[int]:
    sock = Address.parse("127.0.0.1:0").bind()
    server = MonitorServer(sock, monitor.pages())
    server.start()
    yield int(server.url.rpartition(":")[2])
    server.stop()
    server.stop()  # a second time does nothing


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(request)
        answer = b""
        try:
            while part := sock.recv(65_536):
                answer += part
        except ConnectionResetError:
            pass
    return answer


def test_the_metrics_are_served(port: int) -> None:
    answer = raw(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer
    assert b'commandbus_handle_seconds_count{domain="shop",type="Pack"} 0' in answer


def test_health_is_200_or_503_with_its_reasons(port: int, monitor: Monitor) -> None:
    assert probe.ask("127.0.0.1", port, "/livez") == (200, "ok\n")
    assert probe.ask("127.0.0.1", port, "/startupz")[0] == 503
    monitor.health.is_stopping = True
    status, body = probe.ask("127.0.0.1", port, "/readyz")
    assert (status, body) == (503, "it is stopping\nno heartbeat has been committed yet\n")


def test_only_get_and_only_known_paths(port: int) -> None:
    assert b" 405 " in (refused := raw(port, b"POST /metrics HTTP/1.1\r\n\r\n"))
    assert b"Allow: GET" in refused
    assert b" 404 " in raw(port, b"GET /secret HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    "request_bytes",
    [b"nonsense\r\n\r\n", b"GET /livez\r\n\r\n", b"GET / SPDY/9\r\n\r\n", b"x" * 100_000],
)
def test_what_is_no_request_gets_no_answer(port: int, request_bytes: bytes) -> None:
    assert raw(port, request_bytes) == b""
    assert probe.ask("127.0.0.1", port, "/livez")[0] == 200


def test_a_client_that_says_nothing_is_left_after_the_deadline(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.05)

    assert raw(port, b"GET /livez HTT") == b""


def test_many_silent_clients_do_not_keep_a_probe_from_its_answer(port: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    try:
        assert probe.ask("127.0.0.1", port, "/livez")[0] == 200
    finally:
        for sock in silent:
            sock.close()


def test_it_answers_while_another_thread_is_busy(port: int, monitor: Monitor) -> None:
    monitor.health.live_seconds = 0.0  # the loop of this test does not turn
    done = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        answers.append(probe.ask("127.0.0.1", port, "/livez")[0])
        done.set()

    threading.Thread(target=ask).start()
    until_sync(done.is_set)
    assert answers == [503]


@pytest.mark.parametrize(
    ("text", "host", "port_"),
    [
        ("127.0.0.1:8081", "127.0.0.1", 8081),
        ("8081", "127.0.0.1", 8081),
        (":8081", "127.0.0.1", 8081),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("[::1]:8081", "::1", 8081),
        ("localhost:1", "localhost", 1),
    ],
)
def test_an_address_without_a_host_is_this_machine(text: str, host: str, port_: int) -> None:
    assert Address.parse(text) == Address(host, port_)


@pytest.mark.parametrize("text", ["", "here", "a:b", "1.2.3.4:70000", "::1:80", "a b:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="HOST:PORT"):
        Address.parse(text)


def test_a_busy_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidSettingError, match="cannot listen on 127"):
        Address("127.0.0.1", port).bind()


def test_an_address_of_ipv6_has_brackets_in_its_url() -> None:
    try:
        sock = Address.parse("[::1]:0").bind()
    except InvalidSettingError:
        pytest.skip("no IPv6 here")
    with sock:
        server = MonitorServer(sock, Monitor().pages())
        assert server.url.startswith("http://[::1]:")
        server._loop.close()


# -- `commandbus health`


def test_health_tells_by_its_exit_code(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "--url", f"http://127.0.0.1:{port}/livez"]) == 0
    assert capsys.readouterr().out == "ok\n"
    assert run(["health", f"--url=http://127.0.0.1:{port}"]) == 1
    assert "no heartbeat" in capsys.readouterr().out


def test_health_of_nobody_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Address.parse("127.0.0.1:0").bind() as sock:
        port = sock.getsockname()[1]
    assert run(["health", "--url", f"http://127.0.0.1:{port}/livez"]) == 1
    assert "no answer" in capsys.readouterr().err


def test_health_of_something_else_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as conn:
                conn.recv(1000)
                conn.sendall(b"220 mail\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/livez"
        assert run(["health", "--url", url]) == 1
        thread.join()


@pytest.mark.parametrize(
    "words", [["--what"], ["--url"], ["--url", "https://x"], ["--url", "http://x:y/"]]
)
def test_health_refuses_what_it_does_not_know(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["health", *words]) == 2
    assert "error:" in capsys.readouterr().err


def test_health_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "--help"]) == 0
    assert "--url" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        probe.health("nonsense")
    assert ended.value.code == 2
