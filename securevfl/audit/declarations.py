"""Every message of every protocol with what it reveals, as data: what `explain`, the checker and the docs are made of.

`python -m securevfl.audit.declarations docs/declarations.md` writes the table anew.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from securevfl.channel import Abort
from securevfl.job import Job
from securevfl.models.kernel import Kernel
from securevfl.protocols import phase_sums, psi
from securevfl.protocols.base import Declared, ResidualProtocol, Reveal, SumProtocol
from securevfl.protocols.cipher_sum import CipherSum
from securevfl.protocols.direct_sum import DirectSum
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.pairwise_sum import PairwiseSum
from securevfl.protocols.registry import RESIDUALS, SUMS
from securevfl.protocols.sealed_residual import SealedResidual
from securevfl.protocols.tree_sum import TreeSum
from securevfl.session import Hello, Verdict

_COUNTS = "digest of the job, numbers of rows, columns and outputs, and a digest of the row order keyed by the session"
_STOPPED = "that the sender has stopped, and the error's text, which holds no one's data"

SESSION = [
    *(
        Declared(Hello, sender, receiver, Reveal("plain", _COUNTS))
        for sender, receiver in (("active", "passive"), ("passive", "active"), ("passive", "passive"))
    ),
    Declared(Verdict, "active", "passive", Reveal("plain", "whether the target metric is reached")),
    *(
        Declared(Abort, sender, receiver, Reveal("plain", _STOPPED))
        for sender, receiver in (("active", "passive"), ("passive", "active"), ("passive", "passive"))
    ),
]

_PASSIVES = ["P1", "P2", "P3", "P4"]


@dataclass(frozen=True)
class Section:
    """One protocol as the table shows it: what it assumes, and who must pool what they hold to learn more."""

    title: str
    assumes: str
    breaks: str
    declared: list[Declared]


def declared_of(job: Job, passives: Sequence[str]) -> list[Declared]:
    """What each message of a run of this job reveals, handshake included."""
    flow = phase_sums.declares() if isinstance(job.model, Kernel) else []
    return [*SESSION, *job.protocol.sum_for(len(passives)).declares(passives), *job.protocol.residual.declares(), *flow]


def sums() -> list[SumProtocol]:
    """Every registered sum, and each topology that changes who receives what."""
    return [
        DirectSum(),
        TreeSum(),
        TreeSum(topology="star"),
        TreeSum(topology="ring"),
        PairwiseSum(),
        PairwiseSum(topology="tree"),
        PairwiseSum(topology="ring"),
        PairwiseSum(threshold=2 / 3),
        CipherSum(engine=Ckks()),
        CipherSum(engine=Paillier(bits=3072)),
        CipherSum(engine=Ckks(), topology="star"),
        CipherSum(engine=Ckks(), topology="ring"),
    ]


def residuals() -> list[ResidualProtocol]:
    """Every registered residual, sealed ones with each engine."""
    found: list[ResidualProtocol] = [SealedResidual(engine=engine) for engine in (Ckks(), Paillier(bits=3072))]
    return [kind() for kind in RESIDUALS.values() if kind is not SealedResidual] + found


def sections() -> list[Section]:
    """All protocols, for four passive parties."""
    missing = set(SUMS.values()) - {type(protocol) for protocol in sums()}
    assert not missing, f"sums without a row in the declarations: {missing}"
    found = [Section("Session", "authenticated lines", "none needed: plain", SESSION)]
    for chosen in sums():
        options = ", ".join(
            getattr(value, "name", str(value)) if not isinstance(value, float) else f"{value:.2g}"
            for key, value in ((key, getattr(chosen, key)) for key in type(chosen).model_fields)
            if key != "patience" and value is not None
        )
        found.append(
            Section(
                f"Sum: {chosen.name}" + (f" ({options})" if options else ""),
                _assumption(chosen),
                chosen.coalition(_PASSIVES),
                chosen.declares(_PASSIVES),
            )
        )
    for residual in residuals():
        engine = getattr(residual, "engine", None)
        found.append(
            Section(
                f"Residual: {residual.name}" + (f" ({engine.name})" if engine is not None else ""),
                residual.strength,
                "the active party with any passive party learns that party's gradient"
                if residual.seals
                else "none needed: plain",
                residual.declares(),
            )
        )
    found.append(Section("Phases: beside their sums", "none needed: public", "nothing to learn", phase_sums.declares()))
    return [*found, *(_alignment(passives, transfers=transfers) for transfers in (True, False) for passives in (1, 3))]


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


def _assumption(chosen: SumProtocol) -> str:
    match chosen:
        case DirectSum():
            return "none: parts are sent in the clear"
        case TreeSum():
            return "ChaCha20 as a pseudorandom generator; masks uniform over the ring"
        case PairwiseSum():
            return "X25519 (computational Diffie-Hellman), HKDF, ChaCha20 as a pseudorandom generator"
        case CipherSum():
            return (
                "decisional composite residuosity" if isinstance(chosen.engine, Paillier) else "RLWE, 128-bit standard"
            )
    return "see its docstring"


def table() -> str:
    """The whole as Markdown."""
    lines = [
        "# What every message reveals",
        "",
        "Made from the declarations in the code by `python -m securevfl.audit.declarations`; the transcript checker",
        "holds every run against the same data. Parties follow the protocol and study what they receive.",
        "",
        "- `public`: nothing that is anyone's own",
        "- `uniform`: random bits, whatever the data",
        "- `ciphertext`: nothing without the key of the role named",
        "- `output`: what the protocol is there to tell",
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


def main(path: str) -> None:
    """Writes the table."""
    Path(path).write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
