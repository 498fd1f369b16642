"""What every room may use: kernel libraries, processes, memory, progress, reports."""
