"""JSON Merge Patch and JSON Patch: what they make of one payload, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.errors import InvalidInputError, InvalidPayloadError
from commandbus.troubleshooting import JsonPatch, MergePatch
from commandbus.troubleshooting.patch import edit_of, exact_payload, pointer, secret_paths


@pytest.mark.parametrize(
    ("data", "patch", "wanted"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "text"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ],
)
def test_a_merge_patch_does_what_its_rfc_says(data: Any, patch: Any, wanted: Any) -> None:
    before = repr(data)
    assert MergePatch(patch).apply(data) == wanted
    assert repr(data) == before


@pytest.mark.parametrize(
    ("data", "operations", "wanted"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": {"c": 2}}], {"a": 1, "b": {"c": 2}}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1}, [{"op": "add", "path": "/a", "value": 2}], {"a": 2}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": [1, 2]}, [{"op": "replace", "path": "/a/1", "value": None}], {"a": [1, None]}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 1}}], {"b": 1}),
        ({"a": 1}, [{"op": "add", "path": "", "value": {"b": 1}}], {"b": 1}),
        ({"a": {"x": 1}}, [{"op": "move", "from": "/a/x", "path": "/y"}], {"a": {}, "y": 1}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a/b~": 1, "c": 2}, [{"op": "remove", "path": "/a~1b~0"}], {"c": 2}),
        ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
        ({"a": 1.0}, [{"op": "test", "path": "/a", "value": 1, "note": "not known"}], {"a": 1.0}),
        ({"a": [{"b": 1}]}, [{"op": "test", "path": "/a", "value": [{"b": 1}]}], {"a": [{"b": 1}]}),
        ({"n": 1}, [{"op": "test", "path": "", "value": {"n": 1}}], {"n": 1}),
    ],
)  # fmt: skip
def test_a_json_patch_does_what_its_rfc_says(data: Any, operations: Any, wanted: Any) -> None:
    before = repr(data)
    assert JsonPatch(operations).apply(data) == wanted
    assert repr(data) == before


@pytest.mark.parametrize(
    ("data", "operation", "why"),
    [
        ({"a": 1}, {"op": "test", "path": "/a", "value": True}, "another one"),
        ({"a": True}, {"op": "test", "path": "/a", "value": 1}, "another one"),
        ({"a": [1]}, {"op": "test", "path": "/a", "value": [1, 2]}, "another one"),
        ({"a": {"b": 1}}, {"op": "test", "path": "/a", "value": {"c": 1}}, "another one"),
        ({"a": 1}, {"op": "replace", "path": "/b", "value": 1}, "nothing at this path"),
        ({"a": 1}, {"op": "remove", "path": "/b"}, "nothing at this path"),
        ({"a": 1}, {"op": "add", "path": "/b/c", "value": 1}, "nothing at this path"),
        ({"a": 1}, {"op": "add", "path": "/a/c", "value": 1}, "no object and no array"),
        ({"a": [1]}, {"op": "add", "path": "/a/2", "value": 1}, "no such place"),
        ({"a": [1]}, {"op": "replace", "path": "/a/-", "value": 1}, "no such place"),
        ({"a": [1]}, {"op": "remove", "path": "/a/01"}, "no such place"),
        ({"a": [1]}, {"op": "remove", "path": "/a/-1"}, "no such place"),
        ({"a": [1]}, {"op": "remove", "path": "/a/٣"}, "no such place"),
        ({"a": [1]}, {"op": "remove", "path": "/a/" + "9" * 5_000}, "no such place"),
        ({"a": 1}, {"op": "move", "from": "/x", "path": "/y"}, "nothing at this path"),
    ],
)
def test_an_operation_that_does_not_suit_a_payload_says_which_and_why(
    data: Any, operation: Any, why: str
) -> None:
    first = {"op": "add", "path": "/ok", "value": 1}
    with pytest.raises(InvalidPayloadError, match=rf"^operation 2 \({operation['op']} .*{why}"):
        JsonPatch([first, operation]).apply(data)


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ({"op": "add"}, "array of operations"),
        ([], "array of operations"),
        (["add"], "operation 1 of the patch is not a JSON object"),
        ([{"op": "remove", "path": "/a"}, {"path": "/a"}], "operation 2 of the patch has op"),
        ([{"op": ["add"], "path": "/a"}], "operation 1 of the patch has op"),
        ([{"op": "set", "path": "/a"}], "has op 'set'; use add, remove"),
        ([{"op": "remove", "path": "a"}], "has path 'a'; write a JSON Pointer"),
        ([{"op": "remove"}], "has path None"),
        ([{"op": "remove", "path": "/a~2"}], "JSON Pointer"),
        ([{"op": "remove", "path": "/a~"}], "JSON Pointer"),
        ([{"op": "add", "path": "/a"}], r"\(add\) has no 'value'"),
        ([{"op": "move", "path": "/a"}], r"\(move\) has no 'from'"),
        ([{"op": "move", "path": "/a", "from": 1}], "has from 1"),
        ([{"op": "move", "path": "/a/b", "from": "/a"}], "moves a value into itself"),
        ([{"op": "remove", "path": ""}], "removes the whole payload"),
        ([{"op": "move", "path": "/a", "from": ""}], "moves a value into itself"),
        ([{"op": "add", "path": "/a", "value": {"k": "[REDACTED]"}}], "the value of operation 1"),
        ([{"op": "remove", "path": "/a"}] * 1_001, "1,001 operations"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_patch_is_found_before_any_payload_is_read(
    operations: Any, why: str
) -> None:
    with pytest.raises(InvalidInputError, match=why):
        JsonPatch(operations)


@pytest.mark.parametrize("document", [{}, [], None, "text", {"a": {"b": "x [REDACTED]"}}])
def test_a_merge_patch_that_cannot_be_meant_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInputError, match="merge patch"):
        MergePatch(document)


def test_a_patch_has_the_limits_of_a_payload() -> None:
    with pytest.raises(InvalidPayloadError, match=r"merge patch\.n is an integer beyond"):
        MergePatch({"n": 2**60})
    with pytest.raises(InvalidPayloadError, match=r"the patch\[0\]\.value is nan"):
        JsonPatch([{"op": "add", "path": "/n", "value": float("nan")}])


def test_copies_of_a_payload_into_itself_end_before_the_memory_does() -> None:
    wide = JsonPatch([{"op": "copy", "from": "", "path": f"/x{n}"} for n in range(200)])
    with pytest.raises(InvalidPayloadError, match="larger than a payload may be"):
        wide.apply({"a": "x" * 100})
    deep = JsonPatch([{"op": "copy", "from": "", "path": "/a" * (2**n)} for n in range(14)])
    with pytest.raises(InvalidPayloadError, match=r"nested too deeply|larger than"):
        deep.apply({"a": 1})


def test_what_one_payload_gets_is_not_shared_with_the_next() -> None:
    patch = JsonPatch(
        [{"op": "add", "path": "/a", "value": []}, {"op": "add", "path": "/a/-", "value": 1}]
    )
    assert [patch.apply({}), patch.apply({})] == [{"a": [1]}, {"a": [1]}]
    merge = MergePatch({"a": [1]})
    merge.apply({})["a"].append(2)
    assert merge.apply({}) == {"a": [1]}


@pytest.mark.parametrize("verb", ["move", "copy"])
def test_a_secret_value_is_not_put_where_it_would_be_shown(verb: str) -> None:
    data = {"iban": "DE12", "auth": {"password": "hunter2"}, "card": {"token": "abc"}}
    for source in ("/iban", "/auth/password"):
        patch = JsonPatch([{"op": verb, "from": source, "path": "/note"}])
        with pytest.raises(InvalidPayloadError, match="cannot be put where"):
            patch.apply(data, {"iban"})
    inside = JsonPatch([{"op": verb, "from": "/card", "path": "/payment"}])
    assert inside.apply(data)["payment"] == {"token": "abc"}  # its own key hides it there too
    hidden = JsonPatch([{"op": verb, "from": "/iban", "path": "/token"}])
    assert hidden.apply(data, {"iban"})["token"] == "DE12"


def test_a_secret_value_cannot_be_guessed_by_testing_it() -> None:
    data = {"pin": 1234, "card": {"token": "abc"}, "flag_secret": True}
    for path, value in (("/pin", 1234), ("/card", {"token": "abc"}), ("/flag_secret", True)):
        patch = JsonPatch([{"op": "test", "path": path, "value": value}])
        with pytest.raises(InvalidPayloadError, match="a secret value cannot be tested"):
            patch.apply(data, {"pin"})


def test_what_is_written_to_is_known_without_a_payload() -> None:
    merge = MergePatch({"a": {"b": 1, "c/d": None}, "token": {}})
    assert list(map(pointer, merge.written())) == ["/a/b", "/a/c~1d", "/token"]
    patch = JsonPatch(
        [
            {"op": "test", "path": "/t", "value": 1},
            {"op": "move", "from": "/a", "path": "/b"},
            {"op": "add", "path": "/c", "value": {"pin": 1}},
            {"op": "replace", "path": "", "value": {}},
        ]
    )
    assert list(map(pointer, patch.written())) == ["/a", "/b", "/c/pin", "/"]
    assert (secret_paths(merge, ()), secret_paths(patch, {"pin"})) == (["/token"], ["/c/pin"])
    assert [edit_of(each.stored()) for each in (merge, patch)] == [merge, patch]


def test_a_number_that_would_be_rounded_is_refused() -> None:
    assert exact_payload('{"a": 1.10, "b": 0.1, "c": 1e3, "d": 12345678901234567890}') == {
        "a": 1.1, "b": 0.1, "c": 1000.0, "d": 12345678901234567890,
    }  # fmt: skip
    for number in ("0.12345678901234567890123", "1e400", "12345678901234567.5"):
        with pytest.raises(InvalidPayloadError, match="more digits than can be kept"):
            exact_payload(f'{{"a": {number}}}')
    with pytest.raises(InvalidPayloadError, match="too long"):
        exact_payload(f'{{"a": {"9" * 5_000}}}')
    with pytest.raises(InvalidPayloadError, match="too deeply"):
        exact_payload("[" * 100_000)
