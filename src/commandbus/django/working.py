"""What `manage.py commandbus worker` runs: the handlers of the project, as an app of the program.

Imported once, in the process of the worker. Those of `--processes` are new ones, in which nobody
has set up Django yet.
"""

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from commandbus.django.discovery import gathered
from commandbus.django.hygiene import prepare_worker

prepare_worker()
app = gathered()
