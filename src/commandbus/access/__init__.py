"""Access: who calls, and with which token."""
