"""A split that holds every class out in the proportion of the table, found by the party with labels.

Rows are held out by numbers drawn from ids, the same at every party, so none has to say which. There are many ways to
draw them, numbered by the job's `split`. The party with labels tries the first ones and puts the number of the most
even one into the job. So the others learn one number of TRIED, log2(TRIED) bits about all labels together, and no
row's.
"""

from __future__ import annotations

import numpy as np

from securevfl.data.party import Party
from securevfl.errors import ConfigError, PartiesError
from securevfl.job import Job

TRIED = 256


def stratified(job: Job, party: Party) -> Job:
    """Return the job with the split that is most even in the classes of `party`, whose rows are those of the training.

    PartiesError without labels, ConfigError for a job that holds nothing out or fits numbers.
    """
    if party.y is None:
        raise PartiesError(
            f"party {party.name}: labels were expected to stratify by, none came; ask the party with labels"
        )
    if not job.test_fraction or not job.model.loss.classifies:
        raise ConfigError("stratified: a job that holds rows out and fits classes was expected; set test_fraction")
    _, place = np.unique(party.y, return_inverse=True)
    register, total = party.register, np.bincount(place)
    if len(total) > job.schedule(register).test.size:
        raise ConfigError("stratified: held-out rows for every class were expected; raise test_fraction")

    def uneven(split: int) -> float:
        """Chi-squared of the classes held out against those of the table."""
        test = job.model_copy(update={"split": split}).schedule(register).test
        even = total * (len(test) / len(place))
        return float((((np.bincount(place[test], minlength=len(total)) - even) ** 2) / even).sum())

    return Job.from_dict(job.to_dict() | {"split": min(range(TRIED), key=uneven)})
