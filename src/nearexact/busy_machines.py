"""What keeps a fit fast where other programs compute, too.

torch's threads wait for each other after every operation, and GNU's OpenMP lets them spin for it, up to several
milliseconds. Where the thread that is waited for has no core, because another program has it, that is what each of some
hundred operations of an evaluation takes: on two cores and beside two busy programs, an evaluation of the exact
likelihood of 512 rows takes a second instead of 16 ms. Threads that give up their core soon lose hardly anything
on a quiet machine (benchmarks/busy_machine.py).
"""

from __future__ import annotations

import os

SPINS = "1000"  # before a thread gives up its core; 300,000 by default
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # that somebody may have chosen


def wait_patiently() -> None:
    """Let threads that wait give up their core soon, unless the environment says how they shall wait.

    OpenMP reads it when it is loaded, so this helps only before torch is imported.
    """
    if not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = SPINS
