"""Run a benchmark with time limits in seconds of the processor instead of the clock, for machines that others use too.

    OMP_NUM_THREADS=1 python benchmarks/cpu_clock.py benchmarks/kernel_choice.py [its options]

With one thread both are the same on a machine that does nothing else.
"""

from __future__ import annotations

import runpy
import sys
import time

if __name__ == "__main__":
    time.perf_counter = time.process_time  # before the package is imported, which takes it as a default
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
