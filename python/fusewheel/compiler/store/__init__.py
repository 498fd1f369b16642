"""Keeps in files what captured graphs became; the next process need not rewrite them again.

`key` names a graph and all that decides what becomes of it, `record` writes the result as plain
data, with `names` for functions, and `files` keeps these.
"""
