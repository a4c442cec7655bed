"""The options of a job that trains a kernel model by sums of phases (angles of random features; FDSKL)."""

from __future__ import annotations

from securevfl.families.fdskl.fdskl_optimizer import FDSKL
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.options import JobOptions


class PhasesJob(JobOptions, defer_build=True):
    """A job that trains a kernel model by FDSKL."""

    model: Kernel
    optimizer: FDSKL
