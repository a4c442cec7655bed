"""What `securevfl audit` does: audits a job on its tables and shows the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from securevfl.audit.page import html, text
from securevfl.audit.report import run_audit
from securevfl.cli.show import console
from securevfl.data.party import Party
from securevfl.files import check_writable, write_whole
from securevfl.job import Job


def audit_command(job: Job, parties: Sequence[Party], html_path: Path | None = None) -> int:
    """Audits, prints the page and writes it as HTML too; the exit code: 1 if anything exceeds the declaration."""
    if html_path is not None:
        check_writable(html_path)
    errors = console(err=True)
    audit = run_audit(job, parties, on_step=lambda step: errors.print(f"audit: {step}"))
    console().print(text(audit), soft_wrap=True)
    if html_path is not None:
        write_whole(html_path, html(audit).encode())
    return audit.exit_code
