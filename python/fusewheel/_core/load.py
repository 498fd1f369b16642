"""Finds the installed kernel libraries and loads them.

A backend is a package with an entry point in the group `fusewheel.backends`. No backend is known by
name here. The entry point names an object with the attributes of `Plugin`.
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
from fusewheel._core.version import __version__

GROUP = "fusewheel.backends"
OLDEST_TORCH = (2, 10)
_PROVIDED = ("device", "library", "facts", "unavailable")


class Plugin(Protocol):
    """What the entry point of a kernel wheel names; it may be a module."""

    device: str
    library: Path
    facts: dict[str, str]

    def unavailable(self) -> Exception | None:
        """Why the kernels cannot run on this machine, or None; it does not load them."""


@dataclass(frozen=True)
class Backend:
    """One installed kernel library.

    Attributes:
        name: the name of its entry point.
        device: the type of device that its kernels run on.
        version: the version of fusewheel that it belongs to.
        library: the path of its shared library.
        loaded: whether its kernels are in use.
        reason: why they are not in use; None if they are.
        facts: what it was built with, and for which versions.
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
        VersionMismatchError: a kernel wheel has another version than the Python package.
        LibraryLoadError: a library cannot be loaded.
        SignatureMismatchError: a kernel's types differ from its schema.
        NoBackendError: no library was loaded.
    """
    _check_torch(torch.__version__)
    plugins = list(_discover())
    for name, plugin in plugins:
        _check_version(name, plugin)  # all of them, before the first one defines the operators
    backends = tuple(_load(name, plugin) for name, plugin in plugins)
    # After all of them: a backend of another project may be loaded before the one with the schemas.
    for backend in backends:
        if backend.loaded:
            _check_signatures(backend.name, ctypes.CDLL(str(backend.library)))
    if not any(backend.loaded for backend in backends):
        skipped = "".join(f"\n  {b.name}: {b.reason}" for b in backends)
        raise errors.NoBackendError(
            "fusewheel found no kernel wheel that it can use. Install the CPU kernels with "
            f"`pip install fusewheel-cpu=={__version__}`."
            + (f" Installed, but not usable here:{skipped}" if skipped else "")
        )
    return backends


def _discover() -> Iterator[tuple[str, Plugin]]:
    # With two installations on sys.path a wheel is listed twice; Python imports the first.
    seen: set[str] = set()
    for entry_point in metadata.entry_points(group=GROUP):
        if entry_point.name in seen:
            continue
        seen.add(entry_point.name)
        try:
            plugin = entry_point.load()
        except NotADirectoryError as error:
            raise errors.LibraryLoadError(
                f"the backend '{entry_point.name}' ({entry_point.value}) is inside a zip file "
                f"({error.filename}), and no system can load a library from there; install it "
                "unpacked, as pip does"
            ) from error
        except Exception as error:
            raise errors.LibraryLoadError(
                f"the backend '{entry_point.name}' ({entry_point.value}) is installed but cannot "
                f"be imported: {error}"
            ) from error
        missing = [name for name in _PROVIDED if not hasattr(plugin, name)]
        if missing:  # for example because somebody deleted files of the package
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
            f"({plugin.library.parent}); their operators may differ. Install one version of both: "
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
        # torch puts the message of the system into the cause.
        raise errors.LibraryLoadError(
            f"the library of the backend '{name}' does not load: {error.__cause__ or error} "
            f"(built for torch >= {plugin.facts['torch']}; found torch {torch.__version__})"
        ) from error
    _check_schemas(name, ctypes.CDLL(str(plugin.library)))


def _check_torch(version: str) -> None:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and tuple(map(int, match.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise errors.TorchTooOldError(
            f"fusewheel {__version__} needs torch >= {oldest}; found torch {version}"
        )


def _check_schemas(name: str, handle: ctypes.CDLL) -> None:
    # The schema library beside it was not loaded if the process already had one of that SONAME.
    if not hasattr(handle, "fusewheel_schema_version"):
        return  # a backend of another project, without the schemas
    handle.fusewheel_schema_version.restype = ctypes.c_char_p
    version = handle.fusewheel_schema_version().decode()
    if version != __version__:
        raise errors.VersionMismatchError(
            f"the backend '{name}' of version {__version__} found the schemas of version "
            f"{version}: this process has already loaded another copy of fusewheel. Start a new "
            "process and load one copy only"
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
    """The types of a schema, spelled as in the kernel libraries."""
    arguments = ", ".join(_type_name(argument) for argument in schema.arguments)
    results = [_type_name(result) for result in schema.returns]
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"({arguments}) -> {returned}"


def _type_name(argument: torch.Argument) -> str:
    # `type` shows int for ScalarType and Layout; `real_type`, where it exists, does not.
    text = str(getattr(argument, "real_type", argument.type))
    return text.replace("Optional[Tensor]", "Tensor?")
