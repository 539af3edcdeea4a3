"""Types of payloads and of results: what fits them, and how they become JSON and come back."""
