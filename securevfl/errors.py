"""The classes of all errors that securevfl raises deliberately.

    SecureVFLError
    |-- ConfigError         a job or an option that cannot be used
    |   |-- KeySizeError    a key or a modulus below 128-bit security
    |   |-- PartiesError    too few parties, or a wrong name, role or number of parties with labels
    |   |-- ConsentError    a consent sheet that this party has not agreed to
    |   `-- LeakageError    a disclosure that the job has not accepted, or that a limit forbids
    |       `-- AnswerLimitError  a request for scores that a limit forbids
    |-- DataError           a party's table cannot be used
    |   |-- TableError      columns, values or row counts
    |   |-- LabelError      labels that the loss cannot use
    |   |   `-- ClassError  a class in the job that the labels do not have
    |   `-- IdError         duplicate, missing or unmatched ids
    |-- ProtocolError       a peer does not follow the protocol
    |   |-- FrameError      a truncated, altered, replayed or oversized frame
    |   `-- LimitError      a request for more than was agreed
    |-- TransportError      a peer cannot be reached, was refused, is late, or has stopped
    |   |-- PeerLost        the connection to a peer was lost; the peer may return
    |   `-- PeerStopped     a peer that reports that it has stopped, with one of a few reasons
    |-- StorageError        a file that cannot be written or read
    |-- DivergenceError     a training whose loss grows beyond that of a model without weights
    `-- CryptoError         a key, ciphertext or plaintext that cannot be used
        |-- RangeError      a value beyond the agreed fixed-point range
        |-- KeyMismatch     a ciphertext and a key that do not belong together
        |-- OpeningMismatch decrypted values that fail their check
        `-- ShapeMismatch   a product of another shape than agreed

    DataNotice              a warning: part of a table is left out

An error has a problem, a remedy and a stable code: `TableError("column 'x' is empty", "drop it",
code="SVFL-TABLE-EMPTY-COLUMN", column="x")`. The default remedy is that of the code in
`securevfl.error_codes.CATALOGUE`. No message contains a value of a table, and control characters are escaped.

Other parties never receive a message or a code, only one of a few *stop reasons* (`STOP_REASONS`). All errors about a
party's table have the same stop reason, because a specific one would reveal facts about the table.

A party's *ledger* records what its jobs have disclosed and has limits. A *session* is one run's exchange of messages.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Literal, get_args

from securevfl.error_codes import CATALOGUE
from securevfl.untrusted import printable

StopReason = Literal[
    "refused", "limit", "package", "consent", "stopped", "storage", "away", "protocol", "diverged", "failed"
]

STOP_REASONS: dict[StopReason, str] = {
    "refused": "it cannot or may not take part; its own log states the reason",
    "limit": "the request would exceed a limit that its operator has set; ask for fewer rows, or ask its operator to "
    "raise the limit",
    "package": "it lacks a package that the job needs, such as securevfl.credit for reason_codes; its own log names it",
    "consent": "it has not agreed to its consent sheet; run the same command again at every party once it has agreed",
    "stopped": "its operator has stopped it; run the same command again at every party",
    "storage": "one of its files could not be written or read; run the same command again once that is repaired",
    "away": "a party cannot be reached from it or has stopped; run the same command again at every party",
    "protocol": "it received a message that does not follow the protocol; check that all run the same job and version",
    "diverged": "the training diverges; lower lr or scale columns",
    "failed": "it has failed; its own log states the reason",
}
"""For each stop reason, the text that other parties read when a party stops. They learn nothing else of the error."""
assert tuple(STOP_REASONS) == get_args(StopReason)

DATA_DEPENDENT_REASONS: frozenset[StopReason] = frozenset({"refused", "protocol", "diverged", "failed"})
"""Stop reasons that may depend on a party's table or ledger; the others depend on operators, disks or peers only."""


class SecureVFLError(Exception):
    """Base class of all errors that securevfl raises on purpose.

    Args:
        problem: the fault, without a final full stop and without any value of a table.
        remedy: how the user can correct it; by default the remedy of the code's entry in the catalogue.
        code: the error's stable code, a key of `securevfl.error_codes.CATALOGUE`.
        **fields: facts about the error for programs, such as the name of a column or the number of a row.

    Attributes:
        stop_reason: the key of `STOP_REASONS` that other parties receive when this error ends a run.
    """

    stop_reason: ClassVar[StopReason] = "failed"
    default_code: ClassVar[str] = "SVFL-INTERNAL"

    def __init__(
        self, problem: str = "", remedy: str | None = None, *, code: str | None = None, **fields: object
    ) -> None:
        if code is not None and remedy is None:
            remedy = CATALOGUE[code].remedy
        problem, remedy = printable(problem), None if remedy is None else printable(remedy)
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy
        self.code = code or self.default_code
        self.fields = fields
        CATALOGUE[self.code]  # raises KeyError for an unknown code, which is a fault of the caller

    def __reduce__(self) -> tuple[object, ...]:
        """Return how pickle restores this error: without the constructor, whose arguments differ in subclasses."""
        return _restored, (type(self), self.problem, self.remedy), self.__dict__

    def __str__(self) -> str:
        """Return the problem and the remedy as two sentences."""
        if not self.remedy:
            return self.problem
        problem, remedy = self.problem.rstrip("."), self.remedy.rstrip(".")
        stop = "" if self.ends_with_command else "."
        return f"{problem}. {remedy[:1].upper()}{remedy[1:]}{stop}"

    @property
    def ends_with_command(self) -> bool:
        """Whether the last line of the remedy is an indented command, which a user may copy as it is."""
        return self.remedy is not None and (self.remedy.splitlines() or [""])[-1].startswith("    ")


def _restored(kind: type[SecureVFLError], problem: str, remedy: str | None) -> SecureVFLError:
    """Create an error of class `kind` without its constructor. Pickle sets the other attributes afterwards."""
    error = kind.__new__(kind)
    Exception.__init__(error, problem, remedy)
    return error


class ConfigError(SecureVFLError):
    """A job, or one option of it, is invalid."""

    stop_reason: ClassVar[StopReason] = "refused"
    default_code = "SVFL-JOB-OPTION"


class KeySizeError(ConfigError):
    """An encryption key or an encryption modulus offers less than 128 bits of security."""

    default_code = "SVFL-JOB-KEY-SIZE"


class PackageMissingError(ConfigError):
    """The job or the command needs a package that this party has not installed or does not allow."""

    stop_reason = "package"
    default_code = "SVFL-PACKAGE-MISSING"


class PartiesError(ConfigError):
    """The parties are too few, have a wrong name or role, or do not include exactly one party with labels."""

    default_code = "SVFL-PARTIES-ROLE"


class ConsentError(ConfigError):
    """This party has not agreed to the consent sheet, the list of everything that the job would disclose."""

    stop_reason = "consent"
    default_code = "SVFL-CONSENT-REFUSED"


class LeakageError(ConfigError):
    """The job would disclose more than its options accept, or more than a limit of the disclosure ledger allows."""

    default_code = "SVFL-LEAK-NOT-ACCEPTED"


class AnswerLimitError(LeakageError):
    """A request for scores that a limit of the service or of its ledger forbids.

    The requesting party learns that a limit is the reason, because no operator of a service is at hand to explain it.

    Attributes:
        depends_on_table: whether the refusal depends on more than the limit and values that the requesting party
            knows, such as the number of its ids. The refusal then counts as a session that ended early.
    """

    stop_reason: ClassVar[StopReason] = "limit"
    default_code = "SVFL-LIMIT-REACHED"
    depends_on_table = False


class DataError(SecureVFLError):
    """A party's table is unusable; the subclass states whether its columns, labels or ids are the reason."""

    stop_reason = "refused"
    default_code = "SVFL-TABLE-UNREADABLE"


class TableError(DataError):
    """A column of a party's table, or its number of rows, is unusable."""

    default_code = "SVFL-TABLE-TYPE"


class LabelError(DataError):
    """The model's loss does not accept this party's labels, for example text for a regression."""

    default_code = "SVFL-LABEL-VALUES"


class ClassError(LabelError):
    """The job names a class that the labels do not have."""

    default_code = "SVFL-LABEL-CLASSES"


class IdError(DataError):
    """The ids of a party's rows are duplicate, missing, or match no id of the other parties."""

    default_code = "SVFL-ID-INVALID"


class ProtocolError(SecureVFLError):
    """A message from another party violates the protocol, in its format, order or content."""

    stop_reason = "protocol"
    default_code = "SVFL-PROTOCOL-MESSAGE"


class FrameError(ProtocolError):
    """A frame (the unit that a connection transports) is truncated, altered, replayed or too large."""

    default_code = "SVFL-FRAME"


class LimitError(ProtocolError):
    """Another party requests more than it agreed to, for example more rows or more scores."""

    default_code = "SVFL-PROTOCOL-LIMIT"


class TransportError(SecureVFLError):
    """A peer cannot be reached, was refused, is late, or has stopped.

    Args:
        problem: the fault, as in `SecureVFLError`.
        remedy: how the user can correct it, as in `SecureVFLError`.
        code: the error's stable code.
        away: the name of the peer that is away, if known; this party may forward that name to the other parties.
        **fields: facts about the error for programs.
    """

    stop_reason = "away"
    default_code = "SVFL-PEER-AWAY"

    def __init__(
        self,
        problem: str = "",
        remedy: str | None = None,
        *,
        code: str | None = None,
        away: str = "",
        **fields: object,
    ) -> None:
        super().__init__(problem, remedy, code=code, **fields)
        self.away = away


class PeerLost(TransportError):
    """The connection to a peer broke. The peer may connect again and resume."""

    default_code = "SVFL-PEER-LOST"


class PeerStopped(TransportError):
    """A peer has stopped, as the peer itself or another peer reports.

    Args:
        party: the name of the party that stopped first.
        stopped: the stop reason of that party, a key of `STOP_REASONS`.
        more: a further sentence to append to the text of the stop reason.
    """

    default_code = "SVFL-PEER-STOPPED"

    def __init__(self, party: str, stopped: StopReason, more: str = "") -> None:
        super().__init__(f"{party} has stopped: {STOP_REASONS[stopped]}{more}", party=party, stopped=stopped)
        self.party = party
        self.stopped = stopped


class StorageError(SecureVFLError):
    """A file cannot be written or read."""

    stop_reason = "storage"
    default_code = "SVFL-FILE-UNUSABLE"

    def __init__(self, path: object, cause: OSError) -> None:
        reason = cause.strerror or type(cause).__name__
        code, remedy = "SVFL-FILE-UNUSABLE", "name a path that can be used"
        if cause.errno in (errno.ENOSPC, errno.EDQUOT):
            code, remedy = "SVFL-FILE-NO-SPACE", "free space on this disk"
        elif cause.errno == errno.EBUSY:
            code, remedy = "SVFL-FILE-IN-USE", "stop the program that has locked it, or wait until it has finished"
        super().__init__(
            f"{path} cannot be written or read ({reason})",
            remedy,
            code=code,
            path=str(path),
        )


def stop_reason_of(error: BaseException) -> StopReason:
    """Return the stop reason that other parties receive for any error, whether or not this package defines it."""
    if isinstance(error, SecureVFLError):
        return error.stop_reason
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    return "storage" if isinstance(error, OSError) else "failed"


def may_depend_on_table(error: BaseException) -> bool:
    """Return whether the end of a session with this error may reveal a bit of this party's table or ledger."""
    if isinstance(error, AnswerLimitError):
        return error.depends_on_table
    return stop_reason_of(error) in DATA_DEPENDENT_REASONS


class DataNotice(UserWarning):
    """A warning that part of a table is left out, or has less weight than the rest. The training continues."""


class DivergenceError(SecureVFLError):
    """The training loss is far above that of a model with output 0 for every row. No model is stored."""

    stop_reason = "diverged"
    default_code = "SVFL-TRAINING-DIVERGED"


class CryptoError(SecureVFLError):
    """A key, a ciphertext or a plaintext is unusable."""

    stop_reason: ClassVar[StopReason] = "protocol"
    default_code = "SVFL-CRYPTO-CIPHERTEXT"


class RangeError(CryptoError):
    """A number is outside the range of the fixed-point encoding that the parties agreed on."""

    stop_reason = "refused"
    default_code = "SVFL-CRYPTO-RANGE"


class KeyMismatch(CryptoError):
    """A ciphertext was encrypted under another key than the one that is used with it."""

    default_code = "SVFL-CRYPTO-KEY"


class OpeningMismatch(CryptoError):
    """Decrypted values do not satisfy the check values that were decrypted with them, so somebody altered them."""

    default_code = "SVFL-CRYPTO-OPENING"


class ShapeMismatch(CryptoError):
    """An encrypted matrix product does not have the shape that the parties agreed on."""

    default_code = "SVFL-CRYPTO-SHAPE"
