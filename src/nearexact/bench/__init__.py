"""The benchmark: methods under time budgets, and what came of them.

Knows methods, clocks, files and figures; uses `nearexact.gp` only through the methods it runs. Needs the extra "bench".
"""

from nearexact.bench.protocol import BudgetExhausted, Method, Report, Task
from nearexact.bench.store import load

__all__ = ["BudgetExhausted", "Method", "Report", "Task", "load"]
