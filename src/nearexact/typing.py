"""Types that appear all over the package."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

MemoryLimit = int | float | str | None  # bytes, or text such as "2GB"; None for half of what is free
TimeLimit = float | str | None  # seconds, or text such as "5m"; None for no limit
NoiseBounds = tuple[float, float] | float | None  # on the noise variance; a number fixes it, None leaves it free
