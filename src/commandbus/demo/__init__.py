"""The demo: payments that debit accounts, worked off by real processes, one of which is killed.

Reading order: `app` (the handler), `tables` (the business), `workers` (the processes), `run`
(the list of steps). `commandbus demo` shows it.
"""
