"""Everything specified of compiled programs holds for the Triton printer, too."""

import pytest

from tests.compiler.test_programs import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("printed")
