"""What can go wrong when fusewheel meets an installation, as types."""

from __future__ import annotations


class FusewheelError(Exception):
    """Base of every error that is fusewheel's own."""


class BackendError(FusewheelError, ImportError):
    """A kernel library cannot be used; the message says what it was built for and what was found.

    An ImportError, because that is what it is to whoever writes `import fusewheel`.
    """


class NoBackendError(BackendError):
    """No kernel wheel is installed that can run here."""


class TorchTooOldError(BackendError):
    """The installed torch is older than the oldest one the kernels run on."""


class VersionMismatchError(BackendError):
    """Front and kernel wheel are of different versions, so their operators may differ."""


class LibraryLoadError(BackendError):
    """The kernel library is there, but the system refuses to load it."""


class SignatureMismatchError(BackendError):
    """A kernel's C++ types are not those of its schema: calling it would misread its arguments."""


class BackendUnavailableError(BackendError):
    """The backend is in order but cannot run on this machine; it is skipped, not raised."""


class DriverTooOldError(BackendUnavailableError):
    """The device's driver is older than the kernels need."""
