"""Whether a rewrite, or generated code, is faster on this machine."""
