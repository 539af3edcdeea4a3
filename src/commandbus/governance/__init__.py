"""Governed batches (document 003): batch types, submission, tickets, approvals and limits.

Reading order: `batch_types` (what may be submitted), `items` (what is checked of a request),
`service` (the verbs), `limits`, `watch` (waiting for a change), `approvals`.
"""
