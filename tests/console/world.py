"""The console in a test: an app without a socket, and a browser that is signed in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import httpx2

from commandbus import CommandBus
from commandbus.access.model import Caller, Scope
from commandbus.http import HttpSettings, create_app
from tests.http_world import NamedCallers, caller

_FORM = re.compile(r"<form\b(?P<head>[^>]*)>(?P<body>.*?)</form>", re.S)
_INPUT = re.compile(r"<input\b[^>]*>")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


class Browser:
    """What a person does: open a page, send one of its forms."""

    def __init__(self, client: httpx2.AsyncClient, root: str) -> None:
        self.client = client
        self.root = root

    async def get(self, path: str, **params: Any) -> httpx2.Response:
        """Open a page below /console."""
        return await self.client.get(self.root + path, params=params or None)

    async def text(self, path: str, **params: Any) -> str:
        """The markup of a page that must be there."""
        answer = await self.get(path, **params)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def regions(self, path: str, **params: Any) -> dict[str, str]:
        """The regions of a page alone, as the script asks for them."""
        headers = {"X-Console-Regions": "1"}
        answer = await self.client.get(self.root + path, params=params or None, headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, str] = answer.json()["regions"]
        return found

    async def post(self, path: str, **fields: Any) -> httpx2.Response:
        """Send a form as a page would, with whatever token is given."""
        return await self.client.post(self.root + path, data=fields)

    async def submit(self, page: str, action: str, **fields: Any) -> httpx2.Response:
        """Send the form of a page whose action ends with `action`, filled in; follows nothing."""
        markup = page if page.lstrip().startswith("<") else await self.text(page)
        for form in forms_of(markup):
            if urlsplit(form["action"]).path.endswith(action) and form["method"] == "post":
                return await self.client.post(form["action"], data=form["fields"] | fields)
        raise AssertionError(f"no form posts to {action}")


def forms_of(markup: str) -> list[dict[str, Any]]:
    """The forms of a page: action, method, and the hidden fields."""
    found = []
    for form in _FORM.finditer(markup):
        head = dict(_ATTRIBUTE.findall(form["head"]))
        inputs = [dict(_ATTRIBUTE.findall(each)) for each in _INPUT.findall(form["body"])]
        fields = {
            each["name"]: unescape(each.get("value", ""))
            for each in inputs
            if each.get("type") == "hidden"
        }
        action = unescape(head.get("action", ""))
        found.append({"action": action, "method": head.get("method", "get"), "fields": fields})
    return found


def be_patient(app: Any) -> None:
    """A page may take long on a machine that does much else."""
    app.state.commandbus_console.read_seconds = 60.0


@asynccontextmanager
async def console(
    bus: CommandBus,
    *scopes: str,
    domains: tuple[str, ...] | None = None,
    user: str = "ann",
    settings: HttpSettings | None = None,
    prefix: str = "",
    who: Caller | None = None,
) -> AsyncIterator[Browser]:
    """A browser on the console, signed in with these scopes; `read` if none is named."""
    person = who or caller(*(scopes or ("read",)), domains=domains, user=user)
    app = create_app(
        bus, auth=NamedCallers(person=person), settings=settings or HttpSettings(), prefix=prefix,
        console=True,
    )  # fmt: skip
    be_patient(app)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"Authorization": "Bearer person", "Accept": "text/html"}
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers=headers
    ) as client:
        yield Browser(client, f"{prefix}/console")


EVERYTHING = tuple(scope.value for scope in Scope if scope is not Scope.BYPASS_GOVERNANCE)
