"""The command `audit`: check, simulate and attack a job."""

from __future__ import annotations

import typer

from securevfl.cli import option_groups
from securevfl.cli import party_options as options
from securevfl.cli.job_files import load_job, with_helpers, with_modules


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(option_groups.expand_option_groups(audit))


def audit(
    job_file: options.JobFile,
    tables: option_groups.SizedTablesOptions = option_groups.SizedTablesOptions(),
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
) -> None:
    """Check, simulate and attack a job on its tables; exit code 1 if anything exceeds the declared and accepted leaks.

    A single party gives its table, and --size for every other party. Columns of noise then replace the other parties'
    columns, and labels that depend slightly on all columns replace missing labels.
    """
    from securevfl.audit import noise_tables, page
    from securevfl.audit.report import run_audit
    from securevfl.cli.show import console

    job, noise_parties = load_job(job_file), list[str]()
    report.check()
    errors = console(err=True)
    if tables.alone:
        party, others = tables.one_side(job, job_file)
        parties, noise_parties = noise_tables.with_noise_parties(job, party, others, tables.classes), list(others)
        errors.print(f"audit: columns of noise and random labels replace the tables of {', '.join(noise_parties)}")
    else:
        parties = with_helpers(job, tables.read(job_file, drop=job.prepare.drop)[0])
    parties = with_modules(job, job_file, parties)
    audit_result = run_audit(
        job, parties, on_step=lambda step: errors.print(f"audit: {step}"), noise_parties=noise_parties
    )
    console().print(page.text(audit_result), soft_wrap=True)
    report.write("audit", audit_result.plain, lambda: page.html(audit_result))
    raise typer.Exit(audit_result.exit_code)
