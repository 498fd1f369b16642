"""Lowers parts of a rewritten graph to programs of the engine.

`regions` finds the parts, `steps` says which operator a node is as a step, `views` which nodes only
show the memory of another, `program` writes a region, and `engine` puts it into the graph.
"""
