"""What `manage.py test --pattern visits.py` runs: it leaves the bus open, as applications do."""

from __future__ import annotations

from django.test import SimpleTestCase


class SendTest(SimpleTestCase):
    """The view, through Django's test client."""

    def test_a_view_sends(self) -> None:
        """The answer names the command."""
        assert self.client.get("/").status_code == 200
