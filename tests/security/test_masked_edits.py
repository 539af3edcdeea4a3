"""Edits of what was masked: no secret changes its owner, and none can be learned or guessed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commandbus.errors import InvalidPayloadError
from commandbus.privacy.redaction import redact_payload
from commandbus.privacy.values import MASK
from commandbus.troubleshooting import JsonPatch, MergePatch
from commandbus.troubleshooting.bulk_edit import Edited, _example_of
from commandbus.troubleshooting.edits import changed_paths, difference
from commandbus.troubleshooting.unmasking import unmasked

USERS: dict[str, Any] = {
    "users": [
        {"user": "alice", "password": "ALICE-PW-1", "tags": ["a"]},
        {"user": "bob", "password": "BOB-PW-2", "tags": []},
        {"user": "carol", "apiKey": "CAROL-KEY-3"},
    ],
    "note": "three",
}


def shown_users() -> Any:
    return redact_payload(USERS)


def test_removing_an_element_leaves_its_neighbour_its_own_secret() -> None:
    edited = shown_users()
    del edited["users"][0]
    assert unmasked(edited, USERS)["users"] == USERS["users"][1:]


def test_whole_elements_may_be_reordered_repeated_and_added() -> None:
    edited = shown_users()
    edited["users"].reverse()
    edited["users"].insert(1, {"user": "dave", "password": "given"})
    edited["users"].append(copy.deepcopy(edited["users"][0]))
    restored = unmasked(edited, USERS)["users"]
    alice, bob, carol = USERS["users"]
    assert restored == [carol, {"user": "dave", "password": "given"}, bob, alice, carol]


@pytest.mark.parametrize(
    "change",
    [
        lambda users: users[0].update(user="bob"),
        lambda users: users[0].update(tags=["b"]),
        lambda users: users[0].pop("tags"),
        lambda users: users.append({"user": "eve", "password": MASK}),
        lambda users: users.append(MASK),
        lambda users: users[0].update(password=f"{MASK}!"),
        lambda users: users[2].update(password=users[2].pop("apiKey")),
        lambda users: users.append([users.pop(0)]),
    ],
)
def test_a_secret_of_a_changed_element_is_asked_for(change: Any) -> None:
    edited = shown_users()
    change(edited["users"])
    with pytest.raises(InvalidPayloadError, match=r"data\.users\[\d\].*give the real value"):
        unmasked(edited, USERS)


def test_a_changed_element_is_taken_when_its_secrets_are_given() -> None:
    edited = shown_users()
    edited["users"][0].update(user="alicia", password="new")
    restored = unmasked(edited, USERS)
    assert restored["users"][0] == {"user": "alicia", "password": "new", "tags": ["a"]}
    assert restored["users"][1:] == USERS["users"][1:]


@pytest.mark.parametrize("second", ["one-secret", "another-secret"])
def test_elements_that_look_alike_are_not_told_apart_and_not_compared(second: str) -> None:
    """If equal ones were accepted, a guess that was appended would be told right or wrong."""
    old = {"l": [{"u": 1, "token": "one-secret"}, {"u": 1, "token": second}], "n": 1}
    edited = redact_payload(old)
    edited["n"] = 2
    assert unmasked(edited, old) == {**old, "n": 2}  # the array is as it was
    edited["l"].pop()
    with pytest.raises(InvalidPayloadError, match=r"data\.l\[0\] looks like several"):
        unmasked(edited, old)


def test_elements_that_look_alike_and_hide_nothing_need_no_question() -> None:
    old = {"l": [1, 1, {"a": 1}, {"a": 1}, {"pin": 1234}]}
    edited = {"l": [1, {"a": 1}, {"pin": MASK}, True, 1.0]}
    restored = unmasked(edited, old)["l"]
    assert restored == [1, {"a": 1}, {"pin": 1234}, True, 1.0]
    assert [type(item) for item in restored[3:]] == [bool, float]


def test_in_an_object_a_secret_is_known_by_its_key_and_by_nothing_else() -> None:
    old = {"a": {"password": "pw-of-a", "n": 1}, "b": {"password": "pw-of-b", "n": 1}}
    edited = redact_payload(old)
    edited["a"]["n"] = 2
    assert unmasked(edited, old) == {**old, "a": {"password": "pw-of-a", "n": 2}}
    edited["c"] = edited.pop("a")
    with pytest.raises(InvalidPayloadError, match=r"data\.c\.password contains"):
        unmasked(edited, old)


def test_what_was_cut_is_restored_or_asked_for() -> None:
    old = {"text": "x" * 600, "l": [{"n": 1, "text": "y" * 600}], "big": [2**60, 1]}
    edited = redact_payload(old)
    edited["new"] = 1
    assert unmasked(edited, old) == {**old, "new": 1}
    for change, place in (
        (lambda e: e.update(text="z" + e["text"]), "data.text"),
        (lambda e: e["l"][0].update(n=2), r"data\.l\[0\]\.text"),
        (lambda e: e.update(big=[5, {"was": e["big"][0]}]), r"data\.big\[1\]\.was"),
    ):
        wrong = copy.deepcopy(edited)
        change(wrong)
        with pytest.raises(InvalidPayloadError, match=place):
            unmasked(wrong, old)


def test_keys_that_were_masked_or_cut_get_their_names_back() -> None:
    old = {"password=aaaa-1": 1, "password=bbbb-2": 2, "k" * 300: 3, "k" * 301: 4}
    edited = redact_payload(old)
    assert len(edited) == 4
    assert "bbbb" not in str(edited)
    assert unmasked({**edited, "n": 1}, old) == {**old, "n": 1}
    with pytest.raises(InvalidPayloadError, match="contains"):
        unmasked({f"pin={MASK}": 1}, old)
    with pytest.raises(InvalidPayloadError, match="stands there twice"):
        unmasked({**edited, "k" * 300: 3}, old)


def test_a_question_does_not_repeat_a_secret() -> None:
    old = {"hunter22-key": [{"password": "hunter22"}], "password": "hunter22"}
    edited = redact_payload(old)
    name = next(key for key in edited if key != "password")
    with pytest.raises(InvalidPayloadError) as caught:
        unmasked({name: [{"password": MASK, "n": 1}]}, old)
    assert "hunter" not in str(caught.value)


# -- what an edit tells about a secret


def test_a_given_secret_is_listed_whether_it_is_the_old_one_or_not() -> None:
    old = {"pin": "4711", "n": 1}
    listed = []
    for guess in ("4711", "0815"):
        edited = {"pin": guess, "n": 1}
        listed.append(difference(old, unmasked(edited, old), edited=edited))
    assert listed[0] == listed[1] == {"changed": [{"path": "data.pin", "from": MASK, "to": MASK}]}
    kept = {"pin": MASK, "n": 2}
    assert difference(old, unmasked(kept, old), edited=kept) == {
        "changed": [{"path": "data.n", "from": "1", "to": "2"}]
    }


@pytest.mark.parametrize("second", ["same-secret", "other-secret"])
def test_moving_elements_does_not_tell_whether_their_secrets_are_equal(second: str) -> None:
    old = {"l": [{"u": "a", "token": "same-secret"}, {"u": "b", "token": second}]}
    edited = redact_payload(old)
    edited["l"].reverse()
    paths = [
        each["path"] for each in difference(old, unmasked(edited, old), edited=edited)["changed"]
    ]
    assert paths == ["data.l[0].u", "data.l[1].u"]
    patch = JsonPatch([{"op": "move", "from": "/l/0", "path": "/l/1"}])
    after = patch.apply(old)
    assert changed_paths(old, after, (), patch.written()) == ["data.l[0].u", "data.l[1].u"]
    one = Edited(uuid4(), "T", 1, frozenset(), old, after, None, ("data.l[0].u",))
    assert "token" not in str(_example_of(one.command_id, one, patch).changes)


@pytest.mark.parametrize("guess", ["4711-pin", "0815-pin"])
def test_an_edit_of_many_names_a_secret_whether_it_changes_or_not(guess: str) -> None:
    old = {"auth": {"pin": "4711-pin"}}
    for edit in (
        MergePatch({"auth": {"pin": guess}}),
        JsonPatch([{"op": "replace", "path": "/auth/pin", "value": guess}]),
        JsonPatch([{"op": "replace", "path": "", "value": {"auth": {"pin": guess}}}]),
    ):
        assert changed_paths(old, edit.apply(old), (), edit.written()) == ["data.auth.pin"]


HIDDEN: dict[str, Any] = {
    "password": "hunter22", "tokens": {"abc": {"x": 1}, "list": [1, 2]}, "otp": [1, 2, 3],
    "login": "user=a password=embedded1", "note": "use hunter22", "list": [{"cardPin": 1234}],
    "card": {"iban": "DE12345"}, "plain": [1, {"a": "b"}],
}  # fmt: skip


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "copy", "from": "/password", "path": "/shown"},
        {"op": "move", "from": "/password", "path": "/shown"},
        {"op": "move", "from": "/password", "path": "/list/0"},
        {"op": "copy", "from": "/password", "path": ""},
        {"op": "move", "from": "/list/0/cardPin", "path": "/list/0/card"},
        {"op": "copy", "from": "/card/iban", "path": "/card/number"},
        {"op": "copy", "from": "/tokens/abc", "path": "/shown"},
        {"op": "copy", "from": "/tokens/abc", "path": "/tokens2"},
        {"op": "test", "path": "/password", "value": "hunter22"},
        {"op": "test", "path": "/password/x", "value": "hunter22"},
        {"op": "test", "path": "/note", "value": "use hunter22"},
        {"op": "test", "path": "/login", "value": "user=a password=embedded1"},
        {"op": "test", "path": "/list", "value": [{"cardPin": 1234}]},
        {"op": "test", "path": "", "value": {}},
        {"op": "test", "path": "/card", "value": {"iban": "DE12345"}},
        {"op": "test", "path": "/tokens/abc", "value": {"x": 1}},
        {"op": "remove", "path": "/tokens/abc"},
        {"op": "remove", "path": "/otp/2"},
        {"op": "replace", "path": "/tokens/abc", "value": 1},
        {"op": "add", "path": "/tokens/abc/y", "value": 1},
        {"op": "add", "path": "/otp/3", "value": 1},
    ],
)
def test_no_operation_shows_a_secret_or_tells_what_it_is(operation: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayloadError, match="secret") as right:
        JsonPatch([operation]).apply(HIDDEN, {"iban"})
    assert "hunter22" not in str(right.value)


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "move", "from": "/password", "path": "/pin"},
         {"op": "move", "from": "/pin", "path": "/a"}],
        [{"op": "move", "from": "/password", "path": "/pin"},
         {"op": "test", "path": "/pin", "value": "hunter22"}],
        [{"op": "add", "path": "/secrets", "value": {}},
         {"op": "move", "from": "/password", "path": "/secrets/a"},
         {"op": "move", "from": "/secrets", "path": "/a"}],
        [{"op": "remove", "path": "/password"},
         {"op": "test", "path": "/note", "value": "use hunter22"}],
    ],
)  # fmt: skip
def test_no_sequence_of_operations_does_either(operations: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidPayloadError, match="secret"):
        JsonPatch(operations).apply(HIDDEN, {"iban"})


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "replace", "path": "/password", "value": "new"}],
        [{"op": "add", "path": "/tokens/def", "value": "new"}],
        [{"op": "add", "path": "/otp/-", "value": 4}],
        [{"op": "remove", "path": "/tokens"}],
        [{"op": "move", "from": "/password", "path": "/oldPassword"}],
        [{"op": "copy", "from": "/list/0", "path": "/list/-"}],
        [{"op": "test", "path": "/plain", "value": [1, {"a": "b"}]}],
    ],
)
def test_a_secret_can_be_replaced_removed_and_renamed_to_another(operations: Any) -> None:
    after = JsonPatch(operations).apply(HIDDEN, {"iban"})
    shown = json.dumps(redact_payload(after, {"iban"}))
    for secret in ("DE12345", "1234", "embedded1"):
        assert secret not in shown


# -- any edit at all

_KEYS = st.sampled_from(["a", "b", "name", "id"])
_LEAVES = st.integers(0, 2) | st.booleans() | st.sampled_from(["x", "y"]) | st.none()
_NUMBERS = iter(range(10**9))


def _secret(key: str) -> dict[str, Any]:
    return {key: f"sEcReT-{next(_NUMBERS):09}"}


def _holders(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    plain = st.dictionaries(_KEYS, inner, max_size=3)
    keys = st.sampled_from(["password", "apiKey", "cardPin"])
    return (
        st.lists(inner, max_size=4)
        | plain
        | st.tuples(plain, keys).map(lambda both: {**both[0], **_secret(both[1])})
    )


_PAYLOADS = st.dictionaries(
    _KEYS, st.recursive(_LEAVES, _holders, max_leaves=15), min_size=1, max_size=4
)


def _places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each secret with its identity: keys of objects; of an element of an array, how it looks."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            look = json.dumps(redact_payload(item), sort_keys=True)
            yield from _places(item, (*path, f"[{look}]"))
    elif isinstance(value, str) and value.startswith("sEcReT"):
        yield value, "/".join(path)


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item)


def _change(shown: Any, draw: Any) -> None:
    """One change that an operator might make by hand."""
    holder = draw(st.sampled_from(list(_containers(shown))))
    if isinstance(holder, list):
        kind = draw(st.sampled_from(["drop", "add", "swap", "copy", "replace"]))
        at = draw(st.integers(0, max(0, len(holder) - 1)))
        if kind == "add" or not holder:
            holder.insert(at, draw(st.just({"name": "new"}) | st.just(MASK) | _LEAVES))
        elif kind == "drop":
            del holder[at]
        elif kind == "swap":
            holder.insert(0, holder.pop(at))
        elif kind == "copy":
            holder.append(copy.deepcopy(holder[at]))
        else:
            holder[at] = draw(_LEAVES)
    else:
        key = draw(_KEYS | st.sampled_from(["password", "apiKey"]))
        if key in holder and draw(st.booleans()):
            moved = holder.pop(key)
            if draw(st.booleans()):
                holder[draw(_KEYS)] = moved
        else:
            holder[key] = draw(_LEAVES | st.just({"name": "n"}))


@settings(max_examples=400, deadline=None)
@given(_PAYLOADS, st.data())
def test_every_secret_of_a_restored_payload_belongs_to_the_same_one_as_before(
    old: dict[str, Any], data: st.DataObject
) -> None:
    edited = redact_payload(old)
    for _ in range(data.draw(st.integers(0, 4))):
        _change(edited, data.draw)
    before = copy.deepcopy(old)
    try:
        restored = unmasked(copy.deepcopy(edited), old)
    except InvalidPayloadError as refused:
        texts = [str(refused)]
        restored = None
    else:
        texts = []
    assert not any("sEcReT" in text for text in texts)
    if restored is None:
        return
    assert old == before
    assert MASK not in json.dumps(restored)
    owners = set(_places(old))
    for found in _places(restored):
        assert found in owners
    # What is shown of the result is what the operator wrote; the order of keys is nobody's.
    shown, wrote = (json.dumps(redact_payload(x), sort_keys=True) for x in (restored, edited))
    assert shown == wrote


@pytest.mark.parametrize(
    "edit",
    [
        MergePatch({"x": "1234 4321 9999"}),
        MergePatch({"note": "the pin is 4321"}),
        MergePatch({"note": "4321", "deep": {"list": ["a", "4321"]}}),
        MergePatch({"4321": "a new field"}),
        JsonPatch([{"op": "replace", "path": "/note", "value": "the pin is 4321"}]),
        JsonPatch([{"op": "add", "path": "/list/0", "value": "NDMyMQ== 34333231 4321"}]),
        JsonPatch([{"op": "move", "from": "/note", "path": "/x"}]),
        JsonPatch([{"op": "replace", "path": "/pin", "value": "4321"}]),
    ],
)
def test_a_preview_is_the_same_whatever_the_secret_is(edit: MergePatch | JsonPatch) -> None:
    """It leaves no trace: who could tell a right guess by it would find a PIN in a minute."""

    def preview(pin: str) -> Any:
        before = {"pin": pin, "note": f"the pin is {pin}", "x": "y", "list": ["z"], "deep": {}}
        after = edit.apply(before)
        paths = tuple(changed_paths(before, after, (), edit.written()))
        one = Edited(uuid4(), "Pay", 1, frozenset(), before, after, None, paths)
        found = _example_of(one.command_id, one, edit).changes
        assert found
        return found

    assert preview("4321") == preview("8765")


def test_a_preview_shows_what_was_given_and_what_may_be_seen() -> None:
    before = {"pin": "8765", "note": "the pin is 8765", "amount": 5}
    edit = MergePatch({"note": "none", "amount": 6, "pin": "1111"})
    after = edit.apply(before)
    paths = tuple(changed_paths(before, after, (), edit.written()))
    one = Edited(uuid4(), "Pay", 1, frozenset(), before, after, None, paths)
    assert _example_of(one.command_id, one, edit).changes == {
        "changed": [
            {"path": "data.note", "from": f'"the pin is {MASK}"', "to": '"none"'},
            {"path": "data.amount", "from": "5", "to": "6"},
        ],
        "secret": ["/pin"],
    }
