"""Everything specified of compiled programs holds for the Triton printer, too."""

import subprocess
import sys

import pytest
import torch

from tests.compiler import test_programs as specified
from tests.compiler.autograd.test_gradients import *  # noqa: F403
from tests.compiler.test_programs import *  # noqa: F403

# Slow to interpret; test_kernels.py has long rows and scans of its own.
del test_a_large_sum_is_shared_among_threads_and_accurate  # noqa: F821
del test_scans_in_every_layout  # noqa: F821
# A GPU cuts off floats that do not fit, and does not raise errors, as the CPU does.
del test_floats_that_do_not_fit_become_eagers_integers  # noqa: F821
del test_errors_of_values_are_eagers  # noqa: F821
del test_a_place_that_is_not_there_raises_what_eager_raises  # noqa: F821

pytestmark = pytest.mark.usefixtures("printed")

OUT_OF_RANGE = """
import torch
from tests.compiler.programs import compiled
import torch.nn.functional as F
compiled(lambda w, i: F.embedding(i, w))(torch.ones(6, 10).cuda(), torch.tensor([3, 25]).cuda())
torch.cuda.synchronize()
"""


def test_an_index_out_of_range_raises(device):
    if device.type == "cpu":
        specified.test_an_index_out_of_range_raises()
        return
    # The device is unusable for the process afterwards, as it is after eager's check.
    done = subprocess.run([sys.executable, "-c", OUT_OF_RANGE], capture_output=True, text=True)
    assert done.returncode != 0 and "device-side assert" in done.stderr


def test_operators_without_a_lowering_run_through_aten_one_by_one(device):
    if device.type == "cuda":  # a scan is lowered for the CPU alone
        specified.test_operators_without_a_lowering_run_through_aten_one_by_one()
    specified.same(lambda x: torch.linalg.qr((x @ x.t()).exp() + 1)[1].abs() + 1, specified.X)
