"""Every private name of torch that fusewheel uses, and nothing else.

There is one module for each theme. `find` looks up each name and knows what it is needed for. If
torch lacks a name, its fallback is used; without a fallback, the call that needs the name raises
`TorchChangedError`. Importing fusewheel never fails because of a missing name.
"""
