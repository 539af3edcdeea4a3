"""commandbus in a Django project: `INSTALLED_APPS = [..., "commandbus.django"]`.

`from commandbus.django import bus`: its verbs run on Django's own connection, so that inside
`transaction.atomic()` a command exists if and only if the rows beside it do.
"""

from commandbus.extras import extra

with extra("django", "commandbus.django"):
    from commandbus.django.sending import DjangoBus

#: On the database that the setting COMMANDBUS names.
bus = DjangoBus()

__all__ = ["DjangoBus", "bus"]
