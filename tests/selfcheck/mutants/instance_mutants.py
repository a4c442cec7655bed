"""Mutants (deliberate errors) that treat only the first block, output, byte or input
correctly, or omit inputs of digests.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from securevfl.crypto import message_headers, share_scheme
from securevfl.crypto.kernel import row_products
from securevfl.crypto.kernel import shares as kernel_shares
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.lattice.lattice_shares import LatticeShareEvaluator
from securevfl.crypto.lattice.polynomial_ring import SealRing
from securevfl.crypto.paillier import paillier_messages, paillier_product, paillier_sum
from securevfl.crypto.transfers.field_transfers import TransferSender
from securevfl.crypto.transfers.ot_extension import TransferEndpoint
from securevfl.data.register import Register
from securevfl.families.fdml.local_noise import LocalNoiseSampler
from securevfl.protocols.alignment import psi_many
from securevfl.protocols.residuals.defences import Gaussian, Noise
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares import table_transfers
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.training import run_setup
from securevfl.training.model_part import ModelPart
from securevfl.transport import secure_transport
from securevfl.transport.end_to_end import EndToEndSession
from selfcheck.mutants.mutant import Mutant, Patch, Stand, edited, patched

_product, _zero = LatticeShareEvaluator.product, LatticeShareEvaluator._zero


def _one_reply(self: Any, prepared: Any, sealed: bytes) -> Any:
    bfv = self._parameters.bfv
    self._kept_zero = bfv.io.residues(_zero(self), bfv.shape)
    return _product(self, prepared, sealed)


def _kept(self: Any) -> Any:
    bfv = self._parameters.bfv
    return bfv.io.ciphertext(bfv.level, self._kept_zero, ntt=False)


_read = edited(paillier_messages, "read_message", ("key != fingerprint", "key[:8] != fingerprint[:8]"))
_few = Stand(hmac, compare_digest=lambda one, other: hmac.compare_digest(one[:4], other[:4]))


_LOST: list[tuple[str, str, Patch]] = [
    ("commitments", "the row", edited(ScoreLedger, "commitments", (", salt=id_salt(row_id)", ""))),
    ("commitments", "the key", edited(ScoreLedger, "commitments", ("key=self._file.key, ", ""))),
    ("commitments", "the columns", edited(ScoreLedger, "commitments", ("row.tobytes()", "b''"))),
    (
        "challenges",
        "the columns",
        edited(TransferEndpoint, "_tags", ("hashed.update(corrections)", "pass")),
    ),
    (
        "challenges",
        "the end of the columns",
        edited(TransferEndpoint, "_tags", ("corrections)", "corrections[:80])")),
    ),
    (
        "challenges",
        "the block",
        edited(TransferEndpoint, "_tags", (' + number.to_bytes(8, "little")', "")),
    ),
    ("challenges", "the session", edited(TransferEndpoint, "_tags", ("self._coin + ", ""))),
    ("agreed keys", "the session", edited(KeyPair, "agree", ('"agreement", session, ', '"agreement", '))),
    ("agreed keys", "the purpose", edited(KeyPair, "agree", ("session, domain, ", "session, "))),
    ("agreed keys", "the parties", edited(KeyPair, "agree", ("first, first_key, second, ", "first_key, "))),
    ("coins", "the chunk", edited(share_scheme, "common_coin", ("evaluator, chunk, ", "evaluator, "))),
    ("coins", "the purpose", edited(share_scheme, "common_coin", ("chunk, purpose)", "chunk)"))),
    (
        "coins",
        "the evaluator",
        edited(share_scheme, "common_coin", ("holder, evaluator, chunk", "holder, chunk")),
    ),
    ("seeds of transfers", "the subchannel", edited(table_transfers, "derived_seeds", ("subchannel, ", ""))),
    ("seeds of transfers", "the purpose", edited(table_transfers, "derived_seeds", (", purpose)", ")"))),
    ("noise", "the subchannel", edited(Noise, "__init__", (", subchannel)", ")"))),
    ("noise", "its number", edited(Noise, "take", ("self._key, number", "self._key, 0"))),
    ("claims of a session", "the session", edited(secure_transport, "_claim", ("+ session ", ""))),
    (
        "claims of a session",
        "the receiver",
        edited(secure_transport, "_claim", ("(sender, receiver)", "(sender, sender)")),
    ),
    ("claims of a hub", "the receiver's offer", edited(EndToEndSession, "_claim", (" + _digest(receiver, other)", ""))),
    (
        "the key of rows",
        "half of an id",
        edited(Register, "of_ids", ("keys[order].tobytes()", "keys[order][:, :8].tobytes()")),
    ),
]


_BLOCKS, _DIGESTS, _DERIVED = "several blocks of transfers", "whole digests of messages", "derived values"


def _beside_parts(owner: Any, name: str, secret: Callable[..., bytes]) -> Callable[[], AbstractContextManager[None]]:
    """Write a secret next to every saved part; secret: turns the inputs and the result of key generation into
    bytes."""

    @contextmanager
    def apply() -> Iterator[None]:
        secrets, make, save = list[bytes](), getattr(owner, name), ModelPart.save

        def keeping(*arguments: Any) -> Any:
            result = make(*arguments)
            secrets.append(secret(arguments, result))
            return result

        def save_more(self: Any, path: Any) -> None:
            save(self, path)
            path.with_suffix(".key").write_bytes(b"".join(secrets[:1]))

        with mock.patch.object(owner, name, keeping), mock.patch.object(ModelPart, "save", save_more):
            yield

    return apply


_half_header = edited(message_headers, "read_header", ("fields[1] != key", "fields[1][:8] != key[:8]"))


MUTANTS = [
    Mutant(
        "one encryption of zero for a reply",
        "all ciphertexts of a reply are re-randomised by the same encryption of zero",
        "replies of several ciphertexts",
        "fresh",
        patched((LatticeShareEvaluator, "product", _one_reply), (LatticeShareEvaluator, "_zero", _kept)),
    ),
    Mutant(
        "rows of transfers not counted through",
        "the rows of every block are numbered from 0, so tweaks repeat",
        _BLOCKS,
        "fresh",
        patched(
            edited(
                TransferEndpoint,
                "_next",
                ("self._blocks, self._rows = number + 1, first + rows", "self._blocks += 1"),
            )
        ),
    ),
    Mutant(
        "pads of the first block's rows",
        "the end that offers takes the numbers of the first block for all",
        _BLOCKS,
        "output",
        patched(edited(TransferSender, "_block", ("self._octets, start, q", "self._octets, 0, q"))),
    ),
    Mutant(
        "spent marks of one digit",
        "marks of chunks from number ten on are ignored",
        "chunks from ten on",
        "kept",
        patched(edited(DiskStore, "_load", ("chunk-*.spent", "chunk-?.spent"))),
    ),
    Mutant(
        "preprocessing of one digit",
        "chunks from number ten on are lost with the process that generated them",
        "chunks from ten on",
        "kept",
        patched(edited(DiskStore, "_load", ("chunk-*.ready", "chunk-?.ready"))),
    ),
    Mutant(
        "local noise: one draw a row",
        "all outputs of a row are blurred by one number",
        "noise of several outputs",
        "related",
        patched(edited(LocalNoiseSampler, "__call__", ("H.shape", "(len(H), 1)"))),
    ),
    Mutant(
        "gaussian: one draw a row",
        "all outputs of a row's residual are blurred by one number",
        "noise of several outputs",
        "related",
        patched(edited(Gaussian, "apply", ("g.shape", "(len(g), 1)"))),
    ),
    Mutant(
        "common ids by 64 bits",
        "the second half of the digest of a common id is not looked at",
        "whole digests of common ids",
        "bound",
        patched(edited(psi_many, "lead", ("~total.any(axis=1)", "total[:, 0] == 0"))),
    ),
    Mutant(
        "order of rows by 4 bytes",
        "two parties compare the start of the digests of their row orders",
        _DIGESTS,
        "bound",
        patched((run_setup, "hmac", Stand(hmac, compare_digest=_few.compare_digest, digest=hmac.digest))),
    ),
    Mutant(
        "digest of the job by 16 bytes",
        "two parties compare the first half of the digests of their jobs",
        _DIGESTS,
        "bound",
        patched(
            edited(run_setup, "_check_hellos", ("hello.job != my_hello.job", "hello.job[:16] != my_hello.job[:16]"))
        ),
    ),
    Mutant(
        "keys of a lattice by 8 bytes",
        "messages of an engine name their key, and half of the name is compared",
        "whole digests of lattice keys",
        "bound",
        patched((row_products, "read_header", _half_header)),
    ),
    Mutant(
        "keys of Paillier by 8 bytes",
        "as above, under Paillier",
        "whole digests of paillier keys",
        "bound",
        patched((paillier_product, "read_message", _read), (paillier_sum, "read_message", _read)),
    ),
    Mutant(
        "check of columns by 8 bytes",
        "the tags of columns of transfers are compared in their first half",
        "whole digests of columns",
        "bound",
        patched(
            edited(
                TransferSender,
                "_check",
                ("expected.tobytes()", "expected[:, :8].tobytes()"),
                ("sent[1:].tobytes()", "sent[1:, :8].tobytes()"),
            )
        ),
    ),
    Mutant(
        "kernel: key written to a file",
        "the secret key of a product on the kernel is saved next to a part",
        "secret keys stay home",
        "keys",
        _beside_parts(
            kernel_shares,
            "keypair",
            lambda arguments, result: bytes(np.asarray(result[0]).ravel()[:64].astype("i1").tobytes()),
        ),
    ),
    Mutant(
        "lattice: key written to a file",
        "the secret key of a product or a sum under SEAL is saved next to a part",
        "secret keys stay home",
        "keys",
        _beside_parts(SealRing, "keypair", lambda arguments, result: bytes(result[0].tobytes())),
    ),
    *(
        Mutant(f"{what} without {lost}", f"{what}: nothing follows from {lost}", _DERIVED, "bound", patched(patch))
        for what, lost, patch in _LOST
    ),
    Mutant(
        "commitments that are new each time",
        "a row with the same columns has another commitment in a second query",
        _DERIVED,
        "fresh",
        patched(edited(ScoreLedger, "commitments", ("salt=id_salt(row_id)", "salt=np.random.bytes(16)"))),
    ),
]
