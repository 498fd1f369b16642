"""The errors that fusewheel raises about an installation."""

from __future__ import annotations


class FusewheelError(Exception):
    """The base class of fusewheel's own errors."""


class BackendError(FusewheelError, ImportError):
    """A kernel library cannot be used; the message says what it was built for and what was found.

    It is an ImportError, because `import fusewheel` raises it.
    """


class NoBackendError(BackendError):
    """No kernel wheel is installed that can run here."""


class TorchTooOldError(BackendError):
    """The installed torch is older than the oldest one the kernels run on."""


class VersionMismatchError(BackendError):
    """The Python package and a kernel wheel have different versions, so operators may differ."""


class LibraryLoadError(BackendError):
    """The kernel library is installed, but the system cannot load it."""


class SignatureMismatchError(BackendError):
    """A kernel's C++ types differ from its schema, so a call would misread its arguments."""


class BackendUnavailableError(BackendError):
    """The backend is installed correctly but cannot run on this machine.

    It is not raised: the backend is skipped, and this is its `reason` in `fusewheel.backends()`.
    """


class TorchChangedError(FusewheelError):
    """The installed torch lacks a private name that fusewheel needs for this call."""


class DriverTooOldError(BackendUnavailableError):
    """The device's driver is older than the kernels need."""
