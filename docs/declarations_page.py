"""The page that lists every message of every protocol and what it reveals."""

from __future__ import annotations

from dataclasses import dataclass

from securevfl.base.roles import Roles
from securevfl.credit import correlate, fairness_by_group
from securevfl.families import FAMILIES
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.job import Job
from securevfl.organisations import line_measurement, peer_session, prediction_session, scoring
from securevfl.protocols import alternative_choice, handshake
from securevfl.protocols.alignment import online_lookup, psi
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.protocol_options import RESIDUALS, SUMS
from securevfl.protocols.shares.column_correlations import MIN_CORRELATION_ROWS, CorrelationEncoding
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES
from securevfl.runtime.codec import Message

_PASSIVES = ["P1", "P2", "P3", "P4"]
_ROLES = Roles.labelled("A", _PASSIVES)


@dataclass(frozen=True)
class Section:
    """One protocol as the table shows it: what it assumes, and who must pool what they hold to learn more."""

    title: str
    assumes: str
    breaks: str
    declared: list[MessageDeclaration]


def sections() -> list[Section]:
    """All protocols, for four parties beside the one that collects or has labels."""
    found = [Section("Session", "authenticated lines", "none needed: plain", handshake.declares(_ROLES))]
    found += [
        Section(
            f"Sum: {_title(sums.name, label)}",
            sums.strength,
            sums.coalition(_PASSIVES, "the collector"),
            sums.declares(_PASSIVES),
        )
        for kind in SUMS.values()
        for label, sums in kind.variants().items()
    ]
    found += [
        Section(
            f"Residual: {_title(residual.name, label)}",
            residual.strength,
            "the active party with any passive party learns that party's gradient"
            if residual.seals
            else "none needed: plain",
            residual.declares(),
        )
        for kind in RESIDUALS.values()
        for label, residual in kind.variants().items()
    ]
    found += [
        Section(f"Stored sum: {_title(stored.name, label)}", stored.strength, stored.pooling, stored.declares())
        for kind in STORED_SUMS.values()
        for label, stored in kind.variants().items()
    ]
    found += _methods({item.message for section in found for item in section.declared})
    found += [_alignment(passives, transfers=transfers) for transfers in (True, False) for passives in (1, 3)]
    found.append(_standing())
    beside = [
        each
        for source in (peer_session, prediction_session, scoring, line_measurement)
        for each in source.declares(_ROLES)
    ]
    strength = SHARE_SCHEMES["own"](CorrelationEncoding(MIN_CORRELATION_ROWS).bits).strength
    both = "none needed: the party that asks receives the sums"
    return [
        *found,
        Section("Search of options", "the trainings of its alternatives", both, alternative_choice.declares()),
        Section("Correlations of columns", strength, both, correlate.declares(_ROLES)),
        Section("Counts by group", strength, both, fairness_by_group.declares(_ROLES)),
        Section(
            "Between organisations: ends, predictions, scores, lines",
            "authenticated lines",
            "none needed: plain",
            beside,
        ),
    ]


def _title(name: str, label: str) -> str:
    """Put the name of a variant's kind before its label."""
    rest = label.removeprefix(name).strip()
    return f"{name} ({rest})" if rest else name


def _methods(known: set[type[Message]]) -> list[Section]:
    """Declare what each method sends beside the protocols that have a section of their own."""
    found = []
    for name, kind in FAMILIES.items():
        family = kind()
        jobs = [Job(**example) for example in family.example_jobs().values()]
        roles = [family.complete_roles(job, _ROLES, {}) for job in jobs]
        declared = dict.fromkeys(
            item for job, cast in zip(jobs, roles, strict=True) for item in family.declarations(job, cast)
        )
        own = [item for item in declared if item.message not in known]
        breaks = " ".join(family.coalitions(jobs[0], roles[0]).split("\n"))
        found.append(Section(f"Family: {name}, further messages", family.strength(jobs[0]), breaks, own))
    return found


def _alignment(passives: int, *, transfers: bool) -> Section:
    return Section(
        f"Alignment: private set intersection, {passives + 1} parties, {'many' if transfers else 'few'} ids",
        "computational Diffie-Hellman on Ed25519, ChaCha20 as a pseudorandom generator, hashes as random oracles"
        if transfers
        else "decisional Diffie-Hellman on Curve25519, hashes as random oracles",
        "the two parties together hold both sets"
        if passives == 1
        else "the active party with all passive parties but one learns which of its ids that one has",
        psi.declares(_PASSIVES[:passives], transfers=transfers),
    )


def _standing() -> Section:
    return Section(
        "Questions about a standing table, two parties",
        "the one-more gap Diffie-Hellman assumption on Curve25519, hashes as random oracles",
        "the two parties together hold both sets",
        online_lookup.declares(),
    )


def table() -> str:
    """Return the whole table of declarations as Markdown."""
    lines = [
        "# What every message reveals",
        "",
        "Made from the declarations in the code; the transcript checker",
        "holds every run against the same data. Parties follow the protocol and study what they receive.",
        "",
        "The tables speak of one message at a time. A whole run tells more: forward outputs and their sums span the",
        "columns behind them, whatever hides the parts of one sum (the leak `columns`), and where parties take their",
        "steps in turn, two sums differ by one party's part (the leak `sequential`). What a job at hand adds up to is",
        "printed by `securevfl explain`; see [threat-model.md](threat-model.md).",
        "",
        "- `public`: nothing that is anyone's own",
        "- `uniform`: random bits, whatever the data",
        "- `ciphertext`: nothing without the key of the role named",
        "- `output`: the result for which the protocol runs",
        "- `plain`: what is named, in the clear",
    ]
    for section in sections():
        lines += ["", f"## {section.title}", "", f"Assumes: {section.assumes}.", f"Breaks it: {section.breaks}.", ""]
        if not section.declared:
            lines.append("No messages.")
            continue
        lines += ["| message | from | to | reveals |", "|---|---|---|---|"]
        lines += [
            f"| {item.message.__name__} | {item.sender} | {item.receiver} | {item.reveals} |"
            for item in section.declared
        ]
    return "\n".join(lines) + "\n"
