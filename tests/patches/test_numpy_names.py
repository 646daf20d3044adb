"""Names that numpy has removed, for the modules that use them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from accel_bridge.patches import numpy_names


def test_removed_names_are_the_new_ones_and_others_are_numpys() -> None:
    context: Any = None
    np: Any = numpy_names._make(context)
    assert np.product((2, 3)) == 6
    assert np.zeros is numpy.zeros
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = np.no_such_name
