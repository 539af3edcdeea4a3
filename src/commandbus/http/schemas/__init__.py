"""Request bodies (forms) and response bodies (views). Forms refuse unknown fields; views are made
from the data classes, and show no payload unless a route adds it.
"""
