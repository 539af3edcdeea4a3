"""The forms of requests and answers. Requests refuse what they do not know; answers show no payload
unless a route puts it there.
"""
