"""Who asks, and what they may do: `gate` refuses a request before its body is read, `tokens` and
`json_web_tokens` check a token, `scopes` says what each route needs.
"""
