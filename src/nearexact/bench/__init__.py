"""The benchmark: methods under time budgets, and their results.

Uses `nearexact.gp` in `methods`, which it runs, in `fidelity`, `exchange` and `exact_reference`, which compare runs
with the exact GP, and in `paper.toys`, which trains without the harness; nowhere else.
Needs the extra "bench".
"""

from nearexact.bench.protocol import BudgetExhausted, Method, Report, Task
from nearexact.bench.store import load

__all__ = ["BudgetExhausted", "Method", "Report", "Task", "load"]
