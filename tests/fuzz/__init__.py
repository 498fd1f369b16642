"""Fuzzing: calls of every operator with arguments that nobody thought of.

An operator's test module has a strategy for each of its operators, `FUZZ = {name: arguments}`, a
function of a `Draw`. `tests/ops/test_fuzz.py` finds them.
"""
