"""Commands: sending, payloads, replies, search, audit."""
