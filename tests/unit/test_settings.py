"""Settings: every field is checked, and can be set from the environment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from typer.testing import CliRunner

from commandbus.cli.main import app
from commandbus.errors import InvalidSettingError
from commandbus.settings import Settings, check_worker_settings

#: Field -> smallest and largest value.
RANGES: dict[str, tuple[float, float]] = {
    "max_payload_bytes": (1, 64 * 1024 * 1024),
    "send_chunk_size": (1, 10_000),
    "max_send_many": (1, 10_000_000),
    "max_batch_size": (1, 100_000),
    "bulk_threshold": (0, 1_000_000),
    "queue_batch_size": (1, 10_000),
    "max_queue_attempts": (1, 1_000),
    "dispatch_grace_seconds": (0, 86_400),
    "unconfirmed_after_seconds": (0, 31_536_000),
    "on_complete_timeout_seconds": (0.001, 86_400),
    "maintenance_interval_seconds": (0.05, 86_400),
    "poll_max_seconds": (0.01, 60),
    "max_prefetch": (0, 10_000),
    "shutdown_grace_seconds": (0, 86_400),
    "lease_deadline_seconds": (1, 31_536_000),
    "max_global_pending_batches": (0, 1_000_000),
    "max_global_api_requests": (0, 100_000_000),
    "max_user_pending_batches": (0, 1_000_000),
    "user_cooldown_seconds": (0, 604_800),
    "max_user_pending_children": (0, 100_000_000),
    "approval_expires_seconds": (0, 315_360_000),
    "pool_size": (1, 1_000),
    "worker_pool_size": (6, 1_000),
    "handler_pool_size": (1, 1_000),
    "connect_timeout_seconds": (0.1, 600),
    "deadline_seconds": (0.5, 3_600),
    "statement_timeout_seconds": (0.1, 3_600),
}
NUMBERS = [spec.name for spec in fields(Settings) if type(spec.default) in {int, float}]
WHOLE_NUMBERS = [spec.name for spec in fields(Settings) if type(spec.default) is int]


def make(**values: Any) -> Settings:
    return Settings(**values)


def test_every_number_has_a_range() -> None:
    assert set(NUMBERS) == set(RANGES)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_accepted_at_both_ends_of_its_range(name: str) -> None:
    for value in RANGES[name]:
        assert getattr(make(**{name: value}), name) == value


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_refused_when_it_is_negative_or_absurd(name: str) -> None:
    low, high = RANGES[name]
    for value in (low - 1, -1, high + 1, float("nan"), float("inf"), "5", None, True):
        with pytest.raises(InvalidSettingError, match=f"{name} is .*; use a "):
            make(**{name: value})


def test_names_of_keys_are_one_text() -> None:
    with pytest.raises(InvalidSettingError, match="separated by commas"):
        make(redact_keys=["iban"])


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_a_count_is_refused_when_it_is_not_whole(name: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"{name} is 2.5; use a whole number"):
        make(**{name: 2.5})


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "Commandbus",
        "a-b",
        "a.b",
        "1a",
        'a"b',
        "a b",
        "a" * 64,
        None,
        5,
        "a\n",
        "pgmq",
        "pg_mine",
        "information_schema",
        "user",
        "select",
        "order",
        "loop",
    ],
)
def test_a_schema_is_refused_when_it_is_no_plain_identifier_or_not_ours(schema: Any) -> None:
    with pytest.raises(InvalidSettingError, match="schema is"):
        make(schema=schema)


def test_the_command_line_refuses_a_reserved_word_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDBUS_SCHEMA", "user")
    monkeypatch.setenv("COMMANDBUS_DSN", "host=/nowhere")
    for words in (["db", "sql"], ["db", "init"], ["db", "status"], ["list"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert "schema is 'user', which is a reserved word" in result.stderr


@pytest.mark.parametrize("schema", ["commandbus", "other", "_x", "a" * 63, "pgx", "s2"])
def test_a_schema_is_accepted_when_it_is_a_plain_identifier(schema: str) -> None:
    assert make(schema=schema).schema == schema


@pytest.mark.parametrize("scope", ["", "all", "Global", None])
def test_a_scope_of_ids_is_refused_when_it_is_neither_of_the_two(scope: Any) -> None:
    with pytest.raises(InvalidSettingError, match="use 'domain' or 'global'"):
        make(command_id_scope=scope)


@pytest.mark.parametrize("replies", ["domain", "none", "shared.replies", "answers"])
def test_replies_are_accepted_when_they_name_a_queue(replies: str) -> None:
    assert make(replies=replies).replies == replies


@pytest.mark.parametrize(
    "replies", ["", "@inbox", "Bad Queue", "a__b", "payments.commands", None, 5]
)
def test_replies_are_refused_when_they_name_no_queue(replies: Any) -> None:
    with pytest.raises(InvalidSettingError, match=r"replies is .*; use 'domain', 'none' or"):
        make(replies=replies)


@pytest.mark.parametrize("name", ["mark_in_progress", "maintenance", "self_approval"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_switch_is_refused_when_it_is_neither_on_nor_off(name: str, value: Any) -> None:
    with pytest.raises(InvalidSettingError, match=rf"{name} is .*; use True or False"):
        make(**{name: value})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().pool_size = 5  # type: ignore[misc]


def test_every_field_is_read_from_the_environment() -> None:
    texts = {
        "schema": "other", "max_payload_bytes": "1000", "send_chunk_size": "10",
        "validate_on_send": "off",
        "max_send_many": "100", "replies": "none", "mark_in_progress": "off",
        "max_batch_size": "20", "bulk_threshold": "5", "queue_batch_size": "30",
        "max_queue_attempts": "4", "dispatch_grace_seconds": "1.5",
        "unconfirmed_after_seconds": "60.5", "on_complete_timeout_seconds": "0.5",
        "maintenance": "off", "maintenance_interval_seconds": "2.5", "seal_audit": "off",
        "command_id_scope": "global", "poll_max_seconds": "0.5", "max_prefetch": "7",
        "shutdown_grace_seconds": "1.5", "lease_deadline_seconds": "60", "pool_size": "3",
        "handler_timeout_seconds": "7.5",
        "worker_pool_size": "12", "handler_pool_size": "9", "allow_autocommit_conn": "true",
        "connect_timeout_seconds": "2", "statement_timeout_seconds": "9",
        "deadline_seconds": "5",
        "redact_keys": "iban,tax_no", "max_global_pending_batches": "11",
        "max_global_api_requests": "12", "max_user_pending_batches": "13",
        "user_cooldown_seconds": "14", "max_user_pending_children": "15", "self_approval": "yes",
        "token_pepper": "salt and", "token_pepper_old": "salt,sugar",
        "unpeppered_tokens": "no", "keys_folder": "keys", "approval_expires_seconds": "3600.5",
    }  # fmt: skip
    assert set(texts) == {spec.name for spec in fields(Settings)}
    environ = {f"COMMANDBUS_{name.upper()}": text for name, text in texts.items()}
    read = Settings.from_env(environ)
    assert read == Settings(
        schema="other", max_payload_bytes=1000, send_chunk_size=10, max_send_many=100,
        validate_on_send=False,
        replies="none", mark_in_progress=False, command_id_scope="global", poll_max_seconds=0.5,
        max_batch_size=20, bulk_threshold=5, queue_batch_size=30, max_queue_attempts=4,
        dispatch_grace_seconds=1.5, unconfirmed_after_seconds=60.5,
        on_complete_timeout_seconds=0.5, maintenance=False, maintenance_interval_seconds=2.5,
        seal_audit=False,
        max_prefetch=7, shutdown_grace_seconds=1.5, lease_deadline_seconds=60.0, pool_size=3,
        handler_timeout_seconds=7.5,
        worker_pool_size=12, handler_pool_size=9, allow_autocommit_conn=True,
        connect_timeout_seconds=2.0, statement_timeout_seconds=9.0, redact_keys="iban,tax_no",
        deadline_seconds=5.0,
        max_global_pending_batches=11, max_global_api_requests=12, max_user_pending_batches=13,
        user_cooldown_seconds=14, max_user_pending_children=15, self_approval=True,
        token_pepper="salt and", token_pepper_old="salt,sugar", unpeppered_tokens=False,
        keys_folder="keys", approval_expires_seconds=3600.5,
    )  # fmt: skip
    for spec in fields(Settings):
        default = 0.0 if spec.default is None else spec.default
        assert type(getattr(read, spec.name)) is type(default)


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDBUS_POOL_SIZE", "3")
    monkeypatch.setenv("COMMANDBUS_MAX_PREFETCH", "9")
    read = Settings.from_env(pool_size=4)
    assert (read.pool_size, read.max_prefetch) == (4, 9)


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "yes", "on"])
def test_a_switch_is_on_when_the_environment_says_so(text: str) -> None:
    assert Settings.from_env({"COMMANDBUS_MARK_IN_PROGRESS": text}).mark_in_progress is True


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("POOL_SIZE", "ten"),
        ("POOL_SIZE", "2.5"),
        ("POLL_MAX_SECONDS", ""),
        ("MARK_IN_PROGRESS", "maybe"),
    ],
)
def test_a_variable_is_refused_by_name_when_it_cannot_be_read(name: str, text: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"COMMANDBUS_{name} is .*; use"):
        Settings.from_env({f"COMMANDBUS_{name}": text})


def test_a_variable_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="pool_size is 0"):
        Settings.from_env({"COMMANDBUS_POOL_SIZE": "0"})


@pytest.mark.parametrize("concurrency", [1, 10_000])
def test_a_concurrency_is_accepted_at_both_ends(concurrency: int) -> None:
    check_worker_settings(concurrency, 30)


@pytest.mark.parametrize("concurrency", [0, -1, 10_001, 1.0, "5", None, True])
def test_a_concurrency_is_refused_when_it_cannot_be_meant(concurrency: object) -> None:
    with pytest.raises(InvalidSettingError, match=r"concurrency is .* from 1 to 10,000"):
        check_worker_settings(concurrency, 30)


@pytest.mark.parametrize("vt_seconds", [1, 43_200])
def test_a_visibility_timeout_is_accepted_at_both_ends(vt_seconds: int) -> None:
    check_worker_settings(1, vt_seconds)


@pytest.mark.parametrize("vt_seconds", [0, -1, 43_201, 30.0, "30", None, True])
def test_a_visibility_timeout_is_refused_when_it_cannot_be_meant(vt_seconds: object) -> None:
    with pytest.raises(InvalidSettingError, match=r"vt_seconds is .* from 1 to 43,200"):
        check_worker_settings(1, vt_seconds)


@pytest.mark.parametrize(
    ("deadline", "given", "expected"), [(3_600, None, 3_590), (4, None, 2), (60, 59.5, 59.5)]
)
def test_the_time_out_of_handlers_is_below_the_deadline_of_leases(
    deadline: float, given: float | None, expected: float
) -> None:
    settings = Settings(lease_deadline_seconds=deadline, handler_timeout_seconds=given)
    assert settings.handler_timeout == expected


@pytest.mark.parametrize("seconds", [0, -1, 60, 61, True, "5", float("nan"), float("inf")])
def test_a_time_out_of_handlers_outside_the_deadline_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidSettingError, match="handler_timeout_seconds is"):
        Settings(lease_deadline_seconds=60, handler_timeout_seconds=seconds)


@pytest.mark.parametrize(("text", "expected"), [("none", None), ("", None), ("12", 12.0)])
def test_no_time_out_of_handlers_can_be_said_in_the_environment(
    text: str, expected: float | None
) -> None:
    read = Settings.from_env({"COMMANDBUS_HANDLER_TIMEOUT_SECONDS": text})
    assert read.handler_timeout_seconds == expected
