"""A Django project of one file: a view that sends, and a test that does."""

from __future__ import annotations

import os
import sys
from uuid import uuid4

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from commandbus import BlockingBus

settings.configure(
    SECRET_KEY="for-tests-only",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    DEBUG=True,
    DATABASES={},
    INSTALLED_APPS=[],
    TEST_RUNNER="django.test.runner.DiscoverRunner",
)
django.setup()

#: As applications have it: made at import, never closed.
bus = BlockingBus.connect(os.environ["COMMANDBUS_DSN"])
if os.environ.get("OPEN_AT_IMPORT"):
    bus.check()  # before gunicorn forks its workers


def send(request: HttpRequest) -> HttpResponse:
    """Send a command; says which process did."""
    command_id = bus.send("site", "Visit", uuid4(), {})
    return HttpResponse(f"{os.getpid()} {command_id}")


urlpatterns = [path("", send)]


def application(environ: dict[str, object], start_response: object) -> object:
    """For gunicorn."""
    from django.core.wsgi import get_wsgi_application

    return get_wsgi_application()(environ, start_response)


if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    sys.modules["manage"] = sys.modules["__main__"]
    execute_from_command_line(sys.argv)
