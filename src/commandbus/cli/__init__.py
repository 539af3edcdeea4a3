"""The command line: translates arguments into calls and results into text; decides nothing."""
