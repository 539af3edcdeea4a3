"""One module for each screen; `commandbus.http.console` says how to add one."""
