"""Settings of the project; the tests choose the database and what varies by the environment."""

from __future__ import annotations

import json
import os

import django
from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = "for-tests-only"
DEBUG = os.environ.get("SITE_DEBUG", "") == "1"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "commandbus.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
_parts = conninfo_to_dict(os.environ["SITE_DSN"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts["dbname"],
        "HOST": _parts["host"],
        "PORT": _parts.get("port", ""),
        "USER": _parts["user"],
        "PASSWORD": _parts.get("password", ""),
        # One test database for each run of the tests, which run side by side.
        "TEST": {"NAME": f"test_{_parts['dbname']}"},
        **json.loads(os.environ.get("SITE_DATABASE", "{}")),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
COMMANDBUS = json.loads(os.environ.get("SITE_COMMANDBUS", "{}"))
TASKS = {
    "default": {
        "BACKEND": "commandbus.django.tasks.CommandBusBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"retry_policy": {"max_attempts": 2, "backoff_schedule": [60.0]}},
    },
    "together": {
        "BACKEND": "commandbus.django.tasks.CommandBusBackend",
        "QUEUES": ["together"],
        "OPTIONS": {"domain": "jobs", "transactional": True},
    },
    "once": {
        "BACKEND": "commandbus.django.tasks.CommandBusBackend",
        "OPTIONS": {"domain": "once", "retry_policy": {"max_attempts": 1}},
    },
    **{
        name: {"BACKEND": "commandbus.django.tasks.CommandBusBackend", "OPTIONS": options}
        for name, options in json.loads(os.environ.get("SITE_TASKS", "{}")).items()
    },
}
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
