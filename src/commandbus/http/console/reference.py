"""The reference of the API: the OpenAPI document in the order in which people read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Objects inside one another in an example that is made of a schema.
EXAMPLE_DEPTH = 5

Document = Mapping[str, Any]


class Field(NamedTuple):
    """A parameter, or a property of a schema."""

    name: str
    where: str
    kind: str
    #: Schemas that its type names, to link to.
    refs: tuple[str, ...]
    is_required: bool
    about: str
    limits: str


class Answer(NamedTuple):
    """A response."""

    status: str
    about: str
    kind: str
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    anchor: str
    method: str
    path: str
    title: str
    about: str
    scope: str
    parameters: list[Field]
    body: str
    body_refs: tuple[str, ...]
    example: str
    curl: str
    answers: list[Answer]


@dataclass(frozen=True, slots=True)
class Schema:
    """A named schema."""

    name: str
    about: str
    kind: str
    fields: list[Field]
    example: str


class Reference:
    """An OpenAPI document in the order in which people read."""

    def __init__(self, document: Document) -> None:
        self._schemas: Mapping[str, Any] = document.get("components", {}).get("schemas", {})
        self.title = str(document["info"]["title"])
        self.version = str(document["info"]["version"])
        self.about = str(document["info"].get("description", ""))
        self.groups: dict[str, list[Operation]] = {}
        for path, methods in document.get("paths", {}).items():
            for method, operation in methods.items():
                tag = (operation.get("tags") or ["other"])[0]
                self.groups.setdefault(tag, []).append(self._operation(path, method, operation))
        self.schemas = [self._schema(name, found) for name, found in sorted(self._schemas.items())]

    def _operation(self, path: str, method: str, operation: Document) -> Operation:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        schema = content.get("schema", {})
        example = content.get("example", self.example_of(schema)) if schema else None
        text = "" if example is None else json.dumps(example, indent=2, ensure_ascii=False)
        name = str(operation.get("operationId", f"{method}-{path}"))
        summary, _, rest = str(operation.get("description", "")).partition("\n\n")
        return Operation(
            anchor=f"{method}-{name}",
            method=method.upper(),
            path=path,
            title=str(operation.get("summary", name)).capitalize(),
            about="\n\n".join(filter(None, (" ".join(summary.split()), " ".join(rest.split())))),
            scope=" or ".join(_scopes(operation)),
            parameters=[self._parameter(each) for each in operation.get("parameters", [])],
            body=self.kind_of(schema) if schema else "",
            body_refs=tuple(self._refs(schema)),
            example=text,
            curl=_curl(method.upper(), path, example, is_open=not operation.get("x-scope")),
            answers=[
                self._answer(code, each) for code, each in operation.get("responses", {}).items()
            ],
        )

    def _parameter(self, parameter: Document) -> Field:
        schema = parameter.get("schema", {})
        return Field(
            str(parameter["name"]), str(parameter["in"]), self.kind_of(schema),
            tuple(self._refs(schema)), bool(parameter.get("required")),
            str(parameter.get("description", schema.get("description", ""))), _limits(schema),
        )  # fmt: skip

    def _answer(self, status: str, answer: Document) -> Answer:
        content = answer.get("content", {})
        schema = next(iter(content.values())).get("schema", {}) if content else {}
        kind = self.kind_of(schema) if schema else ""
        return Answer(status, str(answer.get("description", "")), kind, tuple(self._refs(schema)))

    def _schema(self, name: str, schema: Document) -> Schema:
        required = set(schema.get("required", ()))
        fields = [
            Field(
                key, "", self.kind_of(each), tuple(self._refs(each)), key in required,
                str(each.get("description", "")), _limits(each),
            )
            for key, each in schema.get("properties", {}).items()
        ]  # fmt: skip
        example = json.dumps(self.example_of(schema), indent=2, ensure_ascii=False)
        about = " ".join(str(schema.get("description", "")).split())
        return Schema(name, about, self.kind_of(schema), fields, example)

    def kind_of(self, schema: Document) -> str:
        """A type in words."""
        if "$ref" in schema:
            return str(schema["$ref"]).rpartition("/")[2]
        if "const" in schema:
            return json.dumps(schema["const"])
        if "enum" in schema:
            return " | ".join(json.dumps(each) for each in schema["enum"])
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return " or ".join(self.kind_of(each) for each in schema[several])
        if schema.get("type") == "array":
            return f"array of {self.kind_of(schema.get('items', {}))}"
        if "type" not in schema:
            return "anything"
        form = schema.get("format")
        return f"{schema['type']} ({form})" if form else str(schema["type"])

    def _refs(self, schema: Any) -> Iterator[str]:
        if isinstance(schema, Mapping):
            if "$ref" in schema:
                yield str(schema["$ref"]).rpartition("/")[2]
            for key in ("items", "anyOf", "oneOf", "allOf", "additionalProperties"):
                yield from self._refs(schema.get(key))
        elif isinstance(schema, list):
            for each in schema:
                yield from self._refs(each)

    def example_of(self, schema: Document, depth: int = 0) -> Any:
        """The example of a schema, or one that is made of it."""
        for key in ("example", "default", "const"):
            if key in schema:
                return schema[key]
        if schema.get("examples"):
            return schema["examples"][0]
        if "enum" in schema:
            return schema["enum"][0]
        if depth > EXAMPLE_DEPTH:
            return None
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            return self.example_of(self._schemas.get(name, {}), depth + 1)
        for several in ("anyOf", "oneOf", "allOf"):
            if schema.get(several):
                return self.example_of(schema[several][0], depth + 1)
        return self._made(schema, depth)

    def _made(self, schema: Document, depth: int) -> Any:
        match schema.get("type"):
            case "object":
                properties = schema.get("properties", {})
                wanted = schema.get("required") or properties
                return {
                    key: self.example_of(each, depth + 1)
                    for key, each in properties.items()
                    if key in wanted
                }
            case "array":
                return [self.example_of(schema.get("items", {}), depth + 1)]
            case "string":
                return _TEXTS.get(schema.get("format", ""), "text")
            case "integer":
                return schema.get("minimum", 1)
            case "number":
                return float(schema.get("minimum", 1))
            case "boolean":
                return True
            case _:
                return None


_TEXTS = {
    "uuid": "0b9f1c5e-7a35-4d0c-9f3e-2f6d8c1b7a90",
    "date-time": "2026-01-31T12:00:00Z",
}


def _scopes(operation: Document) -> list[str]:
    first = operation.get("x-scope")
    return [] if first is None else [first, *operation.get("x-scope-alternatives", ())]


def _limits(schema: Document) -> str:
    words = {
        "minimum": "at least {}", "maximum": "at most {}", "minLength": "at least {} characters",
        "maxLength": "at most {} characters", "minItems": "at least {} items",
        "maxItems": "at most {} items", "pattern": "like {}", "default": "default {}",
    }  # fmt: skip
    own = {**schema}
    for each in schema.get("anyOf", ()):
        own = {**each, **own}
    return ", ".join(
        word.format(own[key])
        for key, word in words.items()
        if own.get(key) is not None and own.get(key) != ""
    )


def _curl(method: str, path: str, example: Any, *, is_open: bool) -> str:
    parts = ["curl"]
    if method != "GET":
        parts.append(f"-X {method}")
    if not is_open:
        parts.append('-H "Authorization: Bearer $TOKEN"')
    if example is not None:
        body = json.dumps(example, ensure_ascii=False).replace("'", "'\\''")
        parts += ['-H "Content-Type: application/json"', f"-d '{body}'"]
    return " ".join([*parts, f'"$BUS{path}"'])
