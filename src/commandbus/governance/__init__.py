"""Governed batches: batch types, submission, tickets, approvals and limits.

Reading order: `types` (what may be submitted), `items` (what is checked of a request),
`submission` (the transaction that creates), `service` (the verbs), `limits`, `approvals`,
`watch` (waiting for a change).
"""
