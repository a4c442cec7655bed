"""What `securevfl audit` does: audits a job on its tables and shows the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from securevfl.audit.page import html, text
from securevfl.audit.report import run_audit
from securevfl.base.files import write_whole
from securevfl.cli.show import console
from securevfl.data.party import Party
from securevfl.job import Job


def audit_command(
    job: Job, parties: Sequence[Party], html_path: Path | None = None, made_up: Sequence[str] = ()
) -> int:
    """Audits, prints the page and writes it as HTML too; the exit code: 1 if anything exceeds the declaration."""
    errors = console(err=True)
    if made_up:
        errors.print(f"audit: columns of noise and made-up labels stand in the place of {', '.join(made_up)}")
    audit = run_audit(job, parties, on_step=lambda step: errors.print(f"audit: {step}"), made_up=made_up)
    console().print(text(audit), soft_wrap=True)
    if html_path is not None:
        write_whole(html_path, html(audit).encode())
    return audit.exit_code
