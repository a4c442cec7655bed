"""The sample of a consent sheet, generated from the generated loans (docs/made_pages.py)."""

from __future__ import annotations

import re
import warnings

from securevfl.consent.consent_sheet import explain
from securevfl.data.datasets import loans
from securevfl.errors import DataNotice
from securevfl.job import Job
from securevfl.models.linear import Logistic

INTRODUCTION = """# A sample of a consent sheet

After the alignment and before the training, each party reads its sheet and agrees to it. This one is about the job
`model = "logistic"`, with the tables of a bank and a shop that `vfl.datasets.loans()` generates. Your sheet has the
figures of your tables. [For lawyers](for-lawyers.md) explains it row by row. `python -m docs.made_pages` generates this
page.
"""


def page() -> str:
    """Return the page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        sheet = explain(Job(model=Logistic()), loans())
    footer = re.sub(r"\d{4}-\d\d-\d\d by securevfl .*", "(date) by securevfl (version)", sheet.footer)
    return f"{INTRODUCTION}\n```text\n{sheet.first_screen}\n\n{footer}\n```\n"
