"""The command line: translates arguments into calls and answers into text; decides nothing."""
