"""Fused operators in models that are compiled by Inductor itself.

After `enable`, ``torch.compile(model)`` and AOTInductor make the same replacements as
``torch.compile(model, backend="fusewheel")``, in a pass over the graph before autograd takes it
apart. `enable` and `disable` are for the whole process, the block of `enabled` is for its thread.
Importing this module does not load Inductor; `enable` does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from fusewheel._core.caches import name_version_in_caches
from fusewheel._torch import settings
from fusewheel._torch.inductor import config

_NAME = "pre_grad_custom_pass"
_on = threading.Event()


def enable() -> None:
    """Lets Inductor use fused operators in everything that the process compiles from now on.

    This holds for all threads. If the configuration of Inductor has a ``pre_grad_custom_pass`` in
    the calling thread, that pass runs first, on the unchanged graph. In another thread a pass that
    was set there stays as it is, without fused operators; call `enable` in that thread too. A pass
    that is set later, or given to ``torch.compile`` as an option, replaces this one. A second call
    does nothing.

    Dynamo's counters count the replacements under ``"fusewheel"``, unless the compiled graph comes
    from Inductor's cache. `fusewheel.explain` shows the replacements of one model.
    """
    from fusewheel.compiler.entry.inductor import Rewrite

    def with_rewrite(current: Any) -> Any:
        return current if isinstance(current, Rewrite) else Rewrite(current, _on.is_set)

    name_version_in_caches()
    settings.change(config(), _NAME, with_rewrite)
    _on.set()


def disable() -> None:
    """Undoes `enable` in all threads; compiled models stay as they are.

    A pass that was set before `enable` is set again. A pass that was set after it stays.
    """
    from fusewheel.compiler.entry.inductor import Rewrite

    def without_rewrite(current: Any) -> Any:
        ours = isinstance(current, Rewrite) and current.is_on == _on.is_set
        return current.previous if ours else current

    _on.clear()
    settings.change(config(), _NAME, without_rewrite)


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """`enable` for a block, in the thread of the block only (with torch before 2.12 in all).

    Models compile at their first call, so that has to be in the block. Their backward graphs may be
    compiled after it.
    """
    from fusewheel.compiler.entry.inductor import Rewrite

    current = getattr(config(), _NAME)
    if isinstance(current, Rewrite) and current.is_on():
        yield
        return
    name_version_in_caches()
    with settings.assigned(config(), _NAME, Rewrite(current)):
        yield
