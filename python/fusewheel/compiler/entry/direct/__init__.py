"""Calls of language models that are captured without Dynamo."""
