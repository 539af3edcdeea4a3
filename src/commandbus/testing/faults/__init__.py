"""in the making"""
