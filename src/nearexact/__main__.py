"""`python -m nearexact` is the command `nearexact`."""

import sys

from nearexact.cli import main

sys.exit(main())
