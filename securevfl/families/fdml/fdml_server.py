"""The server of FDML as a participant of a run.

Workers (the parties with columns) push their model outputs on batches to the server and pull sums of them. A
participant is the object that does one party's work in a run. A reader is a worker that receives sums.
"""

from __future__ import annotations

from collections.abc import Generator

from securevfl.base.arrays import Floats, RowSlices
from securevfl.families.fdml.fdml_optimizer import FdmlJob, pace_of, readers_of, stored_of, workers_of
from securevfl.families.fdml.pull_server import PullServer
from securevfl.families.participant import Participant, Round
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.party_context import PartyContext

STORED_SUBCHANNEL = "stored"


class FdmlServer(Participant):
    """The server as a participant: it stores pushes. Nothing is stored on disk; after a resume workers push again.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the context of the server.
    """

    def __init__(self, job: FdmlJob, context: PartyContext) -> None:
        self._job = job
        self._context = context

    @property
    def state_fits_any_round(self) -> bool:
        """Whether the state fits any round: always True, because the server has no state."""
        return True

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Answer pulls. Yield a round each time all workers have received the replies to one more iteration."""
        iterations = list(data.schedule.iterations())
        pace, stored = pace_of(self._job, data.schedule, iterations), stored_of(self._job)
        context = self._context.sum_to(self._context.me, workers_of(self._context), subchannel=STORED_SUBCHANNEL)
        readers = readers_of(self._job, self._context)
        server = PullServer(
            context,
            pace,
            stored.server(context, readers),
            lead=self._context.active,
            readers=readers,
            needs_all=stored.hides_parts,
        )
        for done in server.serve():
            yield Round(done, len(iterations), iterations[done - 1].epoch)

    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        """Return None: the server takes no part in predictions."""
        return None

    def state(self) -> State:
        """Return an empty state."""
        return State()
