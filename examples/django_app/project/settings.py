"""The settings of the project."""

import os

from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = "for this example only"
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "project.urls"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "commandbus.django",
    "orders",
]
found = conninfo_to_dict(os.environ["DATABASE_DSN"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found["dbname"],
        "HOST": found.get("host", ""),
        "PORT": found.get("port", ""),
        "USER": found.get("user", ""),
        "PASSWORD": found.get("password", ""),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
COMMANDBUS = {"WORKER": {"concurrency": 5}}
TASKS = {"default": {"BACKEND": "commandbus.django.tasks.CommandBusBackend"}}
