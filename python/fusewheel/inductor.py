"""Fused operators for whoever compiles with Inductor itself.

After `enable`, ``torch.compile(model)`` and ``torch._inductor.aoti_compile_and_package(program)``
replace what ``torch.compile(model, backend="fusewheel")`` replaces, by a pass over the graph before
autograd takes it apart. Importing this module does not load Inductor; `enable` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fusewheel._version import __version__

# Inductor's caches know an operator by its name only, see `fusewheel.compiler.backend`.
_TAG = f"fusewheel-inductor-{__version__}"


def enable() -> None:
    """Have Inductor replace what fusewheel has operators for, in all it compiles from now on.

    A ``pre_grad_custom_pass`` that is set in Inductor's configuration goes first and sees the graph
    it is used to. One that is set later, or given to ``torch.compile`` as an option, takes the
    place of this one. A second call does nothing.

    What was replaced is counted in ``torch._dynamo.utils.counters["fusewheel"]``, unless the
    compiled graph comes from Inductor's cache; `fusewheel.explain` tells it of a model.
    """
    import torch._inductor.config as config
    import torch.compiler.config as shared

    from fusewheel.compiler.inductor_pass import Rewrite

    if not _enabled():
        config.pre_grad_custom_pass = Rewrite(config.pre_grad_custom_pass)
        shared.cache_key_tag += _TAG


def disable() -> None:
    """Undo `enable`; what was compiled stays as it is.

    A pass that was set before `enable` is there again, one that was set since is left alone.
    """
    import torch._inductor.config as config
    import torch.compiler.config as shared

    from fusewheel.compiler.inductor_pass import Rewrite

    current = config.pre_grad_custom_pass
    if isinstance(current, Rewrite):
        config.pre_grad_custom_pass = current.previous
    shared.cache_key_tag = shared.cache_key_tag.replace(_TAG, "")


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """`enable` for a block. Models compile when they are called: it has to hold the first call."""
    before = _enabled()
    enable()
    try:
        yield
    finally:
        if not before:
            disable()


def _enabled() -> bool:
    import torch._inductor.config as config

    from fusewheel.compiler.inductor_pass import Rewrite

    return isinstance(config.pre_grad_custom_pass, Rewrite)
