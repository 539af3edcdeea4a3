"""Who the caller is, and what it may do: `gate` refuses a request before its body is read, `tokens`
and `json_web_tokens` check a token, `scopes` says what each route needs.
"""
