"""Finds the installed kernel libraries and loads them.

A backend is a package that announces itself in the entry-point group `fusewheel.backends`; the
front knows none of them by name. What the entry point names has the attributes of `Plugin`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Protocol

import torch

from fusewheel import errors
from fusewheel._version import __version__

GROUP = "fusewheel.backends"
OLDEST_TORCH = (2, 10)
_PROVIDED = ("device", "library", "facts", "unavailable")


class Plugin(Protocol):
    """What a kernel wheel provides under its entry point (a module will do)."""

    device: str
    library: Path
    facts: dict[str, str]

    def unavailable(self) -> Exception | None:
        """Why the kernels cannot run on this machine, without loading them."""


@dataclass(frozen=True)
class Backend:
    """One installed kernel library and what became of it.

    Attributes:
        name: name of the entry point.
        device: device type whose tensors it serves.
        version: version of fusewheel it was built as.
        library: its shared library.
        loaded: whether its kernels are in use.
        reason: why not, if not.
        facts: what it was built with and for.
    """

    name: str
    device: str
    version: str
    library: Path
    loaded: bool
    reason: Exception | None = None
    facts: dict[str, str] = field(default_factory=dict)


def load_backends() -> tuple[Backend, ...]:
    """Loads every backend that can run here.

    Raises:
        TorchTooOldError: torch is older than 2.10.
        VersionMismatchError: a kernel wheel is of another version than the front.
        LibraryLoadError: a library cannot be loaded.
        SignatureMismatchError: a kernel does not fit its schema.
        NoBackendError: nothing was loaded.
    """
    _check_torch(torch.__version__)
    plugins = list(_discover())
    for name, plugin in plugins:
        _check_version(name, plugin)  # of all, before any of them defines the operators
    backends = tuple(_load(name, plugin) for name, plugin in plugins)
    if not any(backend.loaded for backend in backends):
        skipped = "".join(f"\n  {b.name}: {b.reason}" for b in backends)
        raise errors.NoBackendError(
            "fusewheel found no kernel wheel it can use; its CPU kernels come with "
            f"`pip install fusewheel-cpu=={__version__}`."
            + (f" Installed, but not usable here:{skipped}" if skipped else "")
        )
    return backends


def _discover() -> Iterator[tuple[str, Plugin]]:
    # The same wheel can be seen twice (two installations on sys.path); the first is what imports.
    seen: set[str] = set()
    for entry_point in metadata.entry_points(group=GROUP):
        if entry_point.name in seen:
            continue
        seen.add(entry_point.name)
        try:
            plugin = entry_point.load()
        except NotADirectoryError as error:
            raise errors.LibraryLoadError(
                f"the backend '{entry_point.name}' ({entry_point.value}) lies inside a zip file "
                f"({error.filename}), from where no system loads a library; install it unpacked, "
                "as pip does"
            ) from error
        except Exception as error:
            raise errors.LibraryLoadError(
                f"the backend '{entry_point.name}' ({entry_point.value}) is installed but cannot "
                f"be imported: {error}"
            ) from error
        missing = [name for name in _PROVIDED if not hasattr(plugin, name)]
        if missing:  # what is left of a package that was removed by hand, for example
            raise errors.LibraryLoadError(
                f"the backend '{entry_point.name}' ({entry_point.value}) is installed but provides "
                f"no {', '.join(missing)}; install it again"
            )
        yield entry_point.name, plugin


def _check_version(name: str, plugin: Plugin) -> None:
    version = plugin.facts["version"]
    if version != __version__:
        raise errors.VersionMismatchError(
            f"fusewheel {__version__} found the backend '{name}' of version {version} "
            f"({plugin.library.parent}); their operators may differ. Install both in one version: "
            f"`pip install fusewheel=={__version__} fusewheel-{name}=={__version__}`"
        )


def _load(name: str, plugin: Plugin) -> Backend:
    reason = plugin.unavailable()
    if reason is None:
        _load_library(name, plugin)
    return Backend(
        name=name,
        device=plugin.device,
        version=plugin.facts["version"],
        library=plugin.library,
        loaded=reason is None,
        reason=reason,
        facts=dict(plugin.facts),
    )


def _load_library(name: str, plugin: Plugin) -> None:
    try:
        torch.ops.load_library(str(plugin.library))
    except OSError as error:
        # torch puts the system's own words into the cause.
        raise errors.LibraryLoadError(
            f"the library of the backend '{name}' does not load: {error.__cause__ or error} "
            f"(built for torch >= {plugin.facts['torch']}; found torch {torch.__version__})"
        ) from error
    handle = ctypes.CDLL(str(plugin.library))
    _check_schemas(name, handle)
    _check_signatures(name, handle)


def _check_torch(version: str) -> None:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and tuple(map(int, match.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise errors.TorchTooOldError(
            f"fusewheel {__version__} needs torch >= {oldest}; found torch {version}"
        )


def _check_schemas(name: str, handle: ctypes.CDLL) -> None:
    # The library beside it is not loaded where the process has one of that SONAME already.
    if not hasattr(handle, "fusewheel_schema_version"):
        return  # a backend of somebody else's that does not bring the schemas
    handle.fusewheel_schema_version.restype = ctypes.c_char_p
    version = handle.fusewheel_schema_version().decode()
    if version != __version__:
        raise errors.VersionMismatchError(
            f"the backend '{name}' of version {__version__} met the schemas of version {version}: "
            "another copy of fusewheel was loaded into this process before. Start a new process "
            "and load one of them"
        )


def _check_signatures(name: str, handle: ctypes.CDLL) -> None:
    handle.fusewheel_signatures.restype = ctypes.c_char_p
    for line in handle.fusewheel_signatures().decode().splitlines():
        operator, _, kernel = line.partition("(")
        overload = getattr(getattr(torch.ops.fusewheel, operator, None), "default", None)
        declared = signature_of(overload._schema) if overload is not None else "nothing"
        if declared != "(" + kernel:
            raise errors.SignatureMismatchError(
                f"the backend '{name}' has a kernel {operator}({kernel}, but the schema of "
                f"{operator} says {declared}"
            )


def signature_of(schema: torch.FunctionSchema) -> str:
    """A schema's types alone, spelled as the kernel libraries spell theirs."""
    arguments = ", ".join(_type_name(argument) for argument in schema.arguments)
    results = [_type_name(result) for result in schema.returns]
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"({arguments}) -> {returned}"


def _type_name(argument: torch.Argument) -> str:
    # `real_type` where there is one: `type` shows int for ScalarType and its kin.
    text = str(getattr(argument, "real_type", argument.type))
    return text.replace("Optional[Tensor]", "Tensor?")
