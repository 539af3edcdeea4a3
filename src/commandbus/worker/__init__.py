"""The worker: receiver -> dispatcher -> completer, and a thread that keeps the leases."""
