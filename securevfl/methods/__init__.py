"""The families of training. Adding one is one line here; an optimizer names the one it belongs to."""

from __future__ import annotations

from securevfl.config import Registry
from securevfl.methods.base import Method
from securevfl.methods.fdml import FdmlMethod
from securevfl.methods.phases import Phases
from securevfl.methods.rounds import Rounds
from securevfl.methods.shares import SharesMethod
from securevfl.methods.transfer import TransferLearning

METHODS: Registry[Method] = Registry("method", Rounds, Phases, SharesMethod, TransferLearning, FdmlMethod)
