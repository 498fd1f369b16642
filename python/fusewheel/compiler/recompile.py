"""Have Dynamo compile anew what this backend compiled under other circumstances."""

from __future__ import annotations

import sys

import torch


def drop_compiled() -> None:
    """Drop what was compiled with ``backend="fusewheel"``: its next call compiles it.

    Dynamo keeps compiled code on the code object of a function. All that hangs on such a function
    goes, results of other backends too, which these compile again. Where this torch keeps it
    otherwise than the versions known here, everything goes that any backend compiled.
    """
    if "torch._dynamo" not in sys.modules:  # nothing was compiled yet
        return
    try:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
        from torch._dynamo.convert_frame import input_codes

        codes = [code for reference in input_codes.seen if (code := reference()) is not None]
        entries = {code: _debug_get_cache_entry_list(code) for code in codes}
        own = [code for code in codes if any(_is_own(entry.backend) for entry in entries[code])]
    except (ImportError, AttributeError):
        torch.compiler.reset()
        return
    for code in own:
        reset_code(code)


def _is_own(backend: object) -> bool:
    from .backend import backend as own

    while (inner := getattr(backend, "compiler_fn", None)) is not None:
        backend = inner
    return backend is own
