"""The worker: receiver -> executor -> completer, and a thread that keeps the leases."""
