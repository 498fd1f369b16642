"""Mutation testing: one line of the sources is broken, and some test must turn red.

`nox -s mutants -- 60` breaks 60 lines at random, one at a time, in a copy of the repository.
"""
