"""What is captured in place of code that no graph can show: transformers' loop over experts.

How many experts were chosen is known only when the loop runs, so Dynamo breaks the graph there, and
other captures fail. `fusewheel.transformers` hands out other code while `capturing` says so.
"""

from __future__ import annotations

import contextlib

from fusewheel._torch.dynamo import backend_on_the_stack, capturing
from fusewheel.compiler.match.recompile import is_own
from fusewheel.compiler.match.registry import EXPERTS
from fusewheel.compiler.match.switches import disabled


def replacing() -> contextlib.AbstractContextManager[None]:
    """A block that captures a program without such code, unless that is switched off."""
    return contextlib.nullcontext() if EXPERTS in disabled() else capturing()


def dynamo_replaces() -> bool:
    """Whether Dynamo captures a program now, for a backend of ours, without such code."""
    return EXPERTS not in disabled() and is_own(backend_on_the_stack())
