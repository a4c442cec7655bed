"""Every error has a code of the catalogue, a problem and a remedy, and shows no data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs import error_codes_page
from securevfl import errors
from securevfl.error_codes import CATALOGUE

ROOT = Path(__file__).parents[1]
SOURCES = [path for folder in ("securevfl", "crypto", "protocols") for path in sorted((ROOT / folder).rglob("*.py"))]
ERRORS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.SecureVFLError) and kind is not errors.SecureVFLError
}
WITH_BUILT_IN_CODE = {"PeerStopped", "StorageError"}
"""Classes whose constructors choose the code themselves."""
MAX_CODES = 150
TABLE_VALUES = re.compile(r"^(values?|cells?|labels?|ids?|identifiers?|targets?|column_values?|X|Y|y)(\[.*\])?$")
"""Expressions that would put the contents of a table into a message."""
WITHOUT_CODES: frozenset[str] = frozenset(
    """
    crypto/curve.py
    crypto/fixed_point_ring.py
    crypto/identifiers.py
    crypto/kernel/gradient.py
    crypto/kernel/ntt.py
    crypto/kernel/opened_words.py
    crypto/kernel/residue_bytes.py
    crypto/kernel/residues.py
    crypto/kernel/ring_layout.py
    crypto/kernel/row_encoding.py
    crypto/kernel/row_products.py
    crypto/kernel/share_protocol.py
    crypto/kernel/shares.py
    crypto/key_agreement.py
    crypto/key_derivation.py
    crypto/lattice/lattice_sum.py
    crypto/lattice/polynomial_ring.py
    crypto/lattice/residue_bytes.py
    crypto/lattice/seal_io.py
    crypto/message_headers.py
    crypto/paillier/fixed_point.py
    crypto/paillier/packing.py
    crypto/paillier/paillier_keys.py
    crypto/paillier/paillier_messages.py
    crypto/paillier/paillier_product.py
    crypto/paillier/paillier_sum.py
    crypto/prg.py
    crypto/scheme.py
    crypto/share_ring.py
    crypto/share_scheme.py
    crypto/sum_trees.py
    crypto/transfers/base_transfers.py
    crypto/transfers/okvs.py
    crypto/transfers/ot_extension.py
    crypto/transfers/row_hash.py
    crypto/transfers/switch_network.py
    crypto/transfers/vole.py
    crypto/wrapping.py
    protocols/alignment/online_lookup.py
    protocols/alignment/psi.py
    protocols/alignment/psi_many.py
    protocols/alignment/psi_transfers.py
    protocols/alignment/psi_work.py
    protocols/bin_classes.py
    protocols/residuals/base.py
    protocols/residuals/defences.py
    protocols/residuals/exchanges.py
    protocols/residuals/open_residual.py
    protocols/residuals/sealed_residual.py
    protocols/score_ledger/database.py
    protocols/score_ledger/ledger.py
    protocols/score_ledger/limits.py
    protocols/shares/disk_store.py
    protocols/shares/fixed_point.py
    protocols/shares/group_counts.py
    protocols/shares/iteration.py
    protocols/shares/offline_phase.py
    protocols/shares/opened_scores.py
    protocols/shares/preprocessing_store.py
    protocols/shares/residual_tables.py
    protocols/shares/share_products.py
    protocols/shares/shares_params.py
    protocols/shares/spent_chunks.py
    protocols/shares/table_transfers.py
    protocols/shares/word_shuffle.py
    protocols/sums/base.py
    protocols/sums/cipher_sum.py
    protocols/sums/mask_keys.py
    protocols/sums/pairwise_sum.py
    protocols/sums/residues.py
    protocols/sums/topologies.py
    securevfl/audit/attacks/__init__.py
    securevfl/audit/simulators.py
    securevfl/base/config.py
    securevfl/base/extensions.py
    securevfl/base/extras.py
    securevfl/base/file_locks.py
    securevfl/base/files.py
    securevfl/base/roles.py
    securevfl/bench/comparison.py
    securevfl/cli/bench.py
    securevfl/cli/certs_commands.py
    securevfl/cli/consent_prompt.py
    securevfl/cli/fairness_command.py
    securevfl/cli/ledger_command.py
    securevfl/cli/main.py
    securevfl/cli/option_groups.py
    securevfl/cli/party_commands.py
    securevfl/cli/prediction_output.py
    securevfl/cli/reason_code_options.py
    securevfl/cli/serve_commands.py
    securevfl/consent/consent_sheet.py
    securevfl/consent/forecast.py
    securevfl/consent/leak_guard.py
    securevfl/consent/ledger_session.py
    securevfl/consent/settle_job.py
    securevfl/data/columns.py
    securevfl/data/composite_ids.py
    securevfl/data/correlations.py
    securevfl/data/datasets.py
    securevfl/data/drift.py
    securevfl/data/id_keys.py
    securevfl/data/join.py
    securevfl/data/load.py
    securevfl/data/parquet_source.py
    securevfl/data/partitions.py
    securevfl/data/party.py
    securevfl/data/preparation.py
    securevfl/data/readers.py
    securevfl/data/row_order.py
    securevfl/data/store.py
    securevfl/data/table_header.py
    securevfl/data/validation.py
    securevfl/disclosure/ledger.py
    securevfl/disclosure/ledger_contents.py
    securevfl/disclosure/limits.py
    securevfl/disclosure/row_sets.py
    securevfl/disclosure/summed_bits.py
    securevfl/families/__init__.py
    securevfl/families/divergence.py
    securevfl/families/family.py
    securevfl/families/fdml/fdml_family.py
    securevfl/families/fdml/fdml_worker.py
    securevfl/families/fdml/label_sharing.py
    securevfl/families/fdml/masked_store.py
    securevfl/families/fdml/open_store.py
    securevfl/families/fdml/pull_server.py
    securevfl/families/fdml/pulls.py
    securevfl/families/fdml/stored_sum.py
    securevfl/families/participant.py
    securevfl/families/run_facts.py
    securevfl/families/shares/shares_family.py
    securevfl/families/shares/shares_inputs.py
    securevfl/families/shares/shares_participant.py
    securevfl/families/shares/shares_plan.py
    securevfl/families/table_preparation.py
    securevfl/families/training_data.py
    securevfl/families/transfer/two_way_exchange.py
    securevfl/families/weights_of_evidence.py
    securevfl/job.py
    securevfl/models/base.py
    securevfl/models/boosted_score.py
    securevfl/models/class_labels.py
    securevfl/models/exposure.py
    securevfl/models/log_link_losses.py
    securevfl/models/loss.py
    securevfl/models/rounding_error.py
    securevfl/models/row_weights.py
    securevfl/models/standard_losses.py
    securevfl/models/torch_block.py
    securevfl/models/torch_model.py
    securevfl/optim/block_newton.py
    securevfl/optim/curvature.py
    securevfl/organisations/align.py
    securevfl/organisations/bare_round_trip.py
    securevfl/organisations/compare.py
    securevfl/organisations/correlate.py
    securevfl/organisations/fairness_by_group.py
    securevfl/organisations/forget.py
    securevfl/organisations/gateway.py
    securevfl/organisations/http_server.py
    securevfl/organisations/join.py
    securevfl/organisations/joint_statistics.py
    securevfl/organisations/kit.py
    securevfl/organisations/line_measurement.py
    securevfl/organisations/monitor.py
    securevfl/organisations/peer_session.py
    securevfl/organisations/peer_settings.py
    securevfl/organisations/predict.py
    securevfl/organisations/prediction_session.py
    securevfl/organisations/reason_codes.py
    securevfl/organisations/scoring.py
    securevfl/organisations/serve.py
    securevfl/organisations/session_manager.py
    securevfl/runtime/channel.py
    securevfl/runtime/codec.py
    securevfl/runtime/dask_backend.py
    securevfl/runtime/disclosure_gate.py
    securevfl/runtime/inbox.py
    securevfl/runtime/worker_backend.py
    securevfl/training/checkpoint.py
    securevfl/training/comparison.py
    securevfl/training/drift_page.py
    securevfl/training/explanations.py
    securevfl/training/model_part.py
    securevfl/training/new_rows.py
    securevfl/training/onnx_export.py
    securevfl/training/run.py
    securevfl/training/run_setup.py
    securevfl/training/scorecard.py
    securevfl/training/session.py
    securevfl/training/simulate.py
    securevfl/training/training_loop.py
    securevfl/transport/certificate_checks.py
    securevfl/transport/certificate_names.py
    securevfl/transport/certs.py
    securevfl/transport/end_to_end.py
    securevfl/transport/endpoint.py
    securevfl/transport/grpc_tls13.py
    securevfl/transport/identity.py
    securevfl/transport/line.py
    securevfl/transport/line_messages.py
    securevfl/transport/packets.py
    securevfl/transport/peers.py
    securevfl/transport/pem_files.py
    securevfl/transport/relay.py
    securevfl/transport/secure_transport.py
    securevfl/transport/stream.py
    securevfl/transport/tls.py
    """.split()
)
"""Modules whose errors have no codes yet."""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _created_errors(path: Path) -> Iterator[ast.Call]:
    """Yield the calls of a module that create an error of this package."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ERRORS:
                yield node


def _module(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _lacks_code(call: ast.Call) -> bool:
    passes_on = any(keyword.arg is None for keyword in call.keywords)
    return _name(call) not in WITH_BUILT_IN_CODE and not passes_on and _keyword(call, "code") is None


def test_the_catalogue_is_small_and_its_codes_well_formed() -> None:
    assert len(CATALOGUE) <= MAX_CODES
    assert all(re.fullmatch(r"SVFL(-[A-Z]+)+", code) for code in CATALOGUE)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_a_code_has_a_cause_and_a_remedy(code: str) -> None:
    for sentence in CATALOGUE[code]:
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_every_error_is_created_with_a_code() -> None:
    lacking = {_module(path) for path in SOURCES for call in _created_errors(path) if _lacks_code(call)}
    assert sorted(lacking - WITHOUT_CODES) == []


def test_codes_are_those_of_the_catalogue_and_all_are_used() -> None:
    used = {
        node.value
        for path in SOURCES
        if path.name != "error_codes.py"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"SVFL-[A-Z-]+", node.value)
    }
    assert used <= CATALOGUE.keys()
    if not WITHOUT_CODES:
        assert sorted(CATALOGUE.keys() - used) == []


def test_every_error_has_a_problem_and_a_remedy() -> None:
    """A missing remedy is that of the catalogue; a problem is a statement without a final stop."""
    wrong = []
    for path in SOURCES:
        for call in _created_errors(path):
            if _module(path) in WITHOUT_CODES or _name(call) in WITH_BUILT_IN_CODE:
                continue
            problem = call.args[0] if call.args else _keyword(call, "problem")
            text = _last_text(problem)
            if problem is None or text.endswith(".") or "expected" in text and "came" in text:
                wrong.append(f"{_module(path)}:{call.lineno}")
    assert wrong == []


def _last_text(node: ast.expr | None) -> str:
    """Return the constant text at the end of an expression that builds a string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
            return text
        case ast.BinOp(right=right):
            return _last_text(right)
    return ""


def test_no_message_or_field_contains_a_value_of_a_table() -> None:
    shown = []
    for path in SOURCES:
        for call in _created_errors(path):
            inserted = [part.value for part in ast.walk(call) if isinstance(part, ast.FormattedValue)]
            inserted += [keyword.value for keyword in call.keywords if keyword.arg not in (None, "code")]
            shown += [
                f"{_module(path)}:{part.lineno}: {ast.unparse(part)}"
                for part in inserted
                if TABLE_VALUES.match(ast.unparse(part))
            ]
    assert shown == []


@pytest.mark.parametrize("name", sorted(ERRORS - WITH_BUILT_IN_CODE))
def test_an_error_renders_its_problem_and_its_remedy(name: str) -> None:
    error = getattr(errors, name)("column 'x' is empty", code="SVFL-TABLE-EMPTY-COLUMN", column="x")
    remedy = CATALOGUE["SVFL-TABLE-EMPTY-COLUMN"].remedy
    assert (error.code, error.fields, error.remedy) == ("SVFL-TABLE-EMPTY-COLUMN", {"column": "x"}, remedy)
    assert str(error) == f"column 'x' is empty. {remedy}"


def test_the_page_lists_every_code_once() -> None:
    page = error_codes_page.page()
    for code, (cause, remedy) in CATALOGUE.items():
        assert page.count(f"| `{code}` | {cause} | {remedy} |") == 1
