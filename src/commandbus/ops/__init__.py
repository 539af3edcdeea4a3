"""What operators do: troubleshooting, and reading what happened."""
