"""`python -m cuda_emulated.counts [PART OF A NAME]`: what cases move, by instruction."""

from __future__ import annotations

import sys

from cuda_emulated.counts.cases import CASES
from cuda_emulated.counts.counted import counted
from cuda_emulated.counts.figures import missed
from cuda_emulated.counts.kernels import at, line_at


def main(part: str) -> None:
    """Prints the cases whose names contain `part`."""
    for case in CASES:
        if part not in case.name:
            continue
        found = counted(case)
        print(f"{case.name}\n  {found.figures}\n  missed: {missed(found.figures)}")
        for launch in found.launches:
            print(f"  {at(launch.kernel)}: {launch.grid} x {launch.block}")
            print(f"  read {launch.read}, written {launch.written}")
            for i in launch.instructions if part else ():
                space = "shared" if i.shared else "global"
                kind = f"{space} {'write' if i.writes else 'read'} {i.width:2}"
                lanes = f"{i.lanes / i.executions:4.1f} lanes"
                sectors = f"{i.sectors}/{i.needed} sectors" if not i.shared else ""
                passes = f"{i.passes}/{i.least_passes} passes" if i.shared else ""
                print(
                    f"    {kind} x {i.executions:6}: {lanes} {sectors}{passes} {line_at(i.place)}"
                )


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
