"""Inductor: its configuration, its passes, and packages of AOTInductor."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from fusewheel._torch import settings
from fusewheel._torch.find import find

_PASSES = "replace operators within Inductor"


def compiler(mode: str | None, options: dict[str, Any]) -> Any:
    """Inductor as `torch.compile` calls it, with its checks of mode and options."""
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is not None:
        return wrapper(mode, options, None)
    compile_fx = find("torch._inductor.compile", "compile with Inductor")
    by_mode = find("torch._inductor.list_mode_options", "compile with Inductor")
    chosen = {**(by_mode(mode) if mode else {}), **options}
    return lambda gm, inputs: compile_fx(gm, inputs, options=chosen)


def config() -> Any:
    """Inductor's configuration."""
    found = find("torch._inductor.config", "set Inductor up", None)
    return found if found is not None else find("torch._inductor.config", "set Inductor up")()


def name_in_caches(tag: str) -> None:
    """Have the keys of Inductor's caches contain a text, in every thread, from now on.

    They identify an operator by its name only. The text stays: a backward graph is compiled when it
    first runs, which may be long after the forward, in another thread.
    """
    import torch.compiler.config as shared

    settings.change(shared, "cache_key_tag", lambda old: old if tag in old else old + tag)


def pass_class() -> type:
    """The class of graph passes that have a key for Inductor's caches."""
    path = "torch._inductor.custom_graph_pass.CustomGraphPass"
    found: type = find(path, _PASSES, object)
    return found


def is_ahead_of_time() -> bool:
    """Whether Inductor compiles for a package now; False if it cannot be found out."""
    virtualized = find("torch._inductor.virtualized.V", _PASSES, None)
    return bool(getattr(virtualized, "aot_compilation", False))


def is_in_body() -> bool:
    """Whether Inductor runs its passes on the body of a higher-order operator now.

    Inductor calls passes on each body first, when it is not known how the operator uses the body.
    The rewriter visits bodies from the graph that calls them.
    """
    visit = find("torch._inductor.compile_fx._recursive_pre_grad_passes", _PASSES, None)
    if visit is None:
        return False
    depth, frame = 0, inspect.currentframe()
    while frame is not None:
        depth += frame.f_code is visit.__code__
        frame = frame.f_back
    return depth > 1


def package(program: Any, path: str) -> None:
    """Compile an exported program into a package of AOTInductor."""
    make = find("torch._inductor.aoti_compile_and_package", "make a package of AOTInductor")
    make(program, package_path=path)


def load_package(path: str) -> Any:
    """The callable in a package of AOTInductor."""
    return find("torch._inductor.aoti_load_package", "load a package of AOTInductor")(path)


def configured(**settings: Any) -> contextlib.AbstractContextManager[Any]:
    """A block under other settings of Inductor."""
    block: contextlib.AbstractContextManager[Any] = config().patch(**settings)
    return block
