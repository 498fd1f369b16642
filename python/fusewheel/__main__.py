"""`python -m fusewheel`: the same as the program `fusewheel`."""

from __future__ import annotations

import sys

from fusewheel.cli import main

if __name__ == "__main__":
    sys.exit(main(name="python -m fusewheel"))
