"""GGUF files: reading them, and models over their memory maps."""

from fusewheel.quantization.gguf.load import load_gguf
from fusewheel.quantization.gguf.repack import Repacked, repack_gguf

__all__ = ["Repacked", "load_gguf", "repack_gguf"]
