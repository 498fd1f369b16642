"""Loading of the kernel libraries, and the version; imports nothing else of fusewheel."""
