"""Settings of the service, and what `commandbus serve` and `up` refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from commandbus import InvalidSettingError
from commandbus.cli.main import app
from commandbus.cli.serve import AuthKind, http_settings
from commandbus.http import HttpSettings
from commandbus.http.serving import bind

RUN = CliRunner()


def test_the_defaults_are_safe() -> None:
    settings = HttpSettings()

    assert (settings.host, settings.auth, settings.is_loopback) == ("127.0.0.1", "token", True)
    assert (settings.trusted_proxies, settings.metrics_public) == ("", False)


def test_settings_come_from_the_environment_and_arguments_win() -> None:
    environ = {
        "COMMANDBUS_HTTP_PORT": "9000", "COMMANDBUS_HTTP_METRICS_PUBLIC": "yes",
        "COMMANDBUS_HTTP_RECEIVE_TIMEOUT_SECONDS": "2.5", "COMMANDBUS_HTTP_HOST": "::1",
    }  # fmt: skip

    settings = HttpSettings.from_env(environ, port=9001)

    assert (settings.port, settings.metrics_public) == (9001, True)
    assert (settings.receive_timeout_seconds, settings.is_loopback) == (2.5, True)


@pytest.mark.parametrize(
    "values",
    [
        {"port": 70_000}, {"port": "80"}, {"max_body_bytes": 0}, {"auth": "basic"},
        {"token_cache_seconds": 6.0}, {"max_concurrency": 10, "max_long_polls": 10},
        {"max_wait_seconds": -1}, {"max_auth_failures": 0},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingError, match=r"\w"):
        HttpSettings(**values)


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "many"), ("METRICS_PUBLIC", "perhaps"), ("PORT", "")]
)
def test_an_environment_that_cannot_be_read_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"COMMANDBUS_HTTP_{name}"):
        HttpSettings.from_env({f"COMMANDBUS_HTTP_{name}": value})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_serving_another_address_without_authentication_is_refused(host: str) -> None:
    with pytest.raises(InvalidSettingError, match="would let anybody do anything"):
        http_settings(host, None, AuthKind.NONE)
    result = RUN.invoke(app, ["serve", "--host", host, "--auth", "none"])
    assert result.exit_code == 2
    assert "use --auth token" in result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_on_this_machine_it_is_allowed(host: str) -> None:
    assert http_settings(host, None, AuthKind.NONE).auth == "none"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up"], "name the app"),
        (["up", "a:b", "--demo"], "not both"),
        (["serve", "--app", "nowhere:setup"], "no module"),
        (["serve", "--auth", "basic"], "basic"),
        (["token", "create", "--user", "ann"], "--scope"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: list[str], says: str) -> None:
    result = RUN.invoke(app, arguments)

    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_without_the_extra_its_name_is_told(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import commandbus.cli.main as m; m.main()"

    result = subprocess.run(
        [sys.executable, "-c", code, "serve"], capture_output=True, text=True, check=False
    )

    assert result.returncode == 2
    assert f"needs {package}, which is not installed" in result.stderr
    assert 'pip install "commandbus[api]"' in result.stderr


def test_a_port_that_is_taken_is_told_before_anything_is_started() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(InvalidSettingError, match="choose another with --host or --port"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_help_does_not_load_the_web_framework() -> None:
    code = (
        "import sys, commandbus.cli.main as m\n"
        "sys.exit(bool({'fastapi', 'uvicorn', 'prometheus_client', 'jwt'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
