"""The result of an audit as one page: as text for a terminal, and as HTML that needs no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from securevfl.audit.findings import Audit, Inference
from securevfl.consent.learned_table import LEARNED_TITLE, SIZES_TEXT, learned_note, learned_table
from securevfl.consent.sheet_document import WIDTH, table_lines
from securevfl.display import html as markup
from securevfl.display.html import Markup, escape
from securevfl.display.text_layout import paragraph
from securevfl.protocols.declarations import MessageDeclaration

GLOSSARY = {
    "AUC": "how well a score separates two kinds of rows: 1 is always right, 0.5 is a coin toss",
    "residual": "the error of the model for a row; the party with the labels sends these errors back in each round, "
    "usually encrypted",
    "sealed": "encrypted, so that others can compute with it but not read it",
    "gradient": "the direction in which a party changes its weights; each party learns its own",
    "forward output": "a party's part of the score of a row",
    "declared": "stated beforehand, in the consent sheet that every party agrees to",
    "accepted": "named in the job's accepts, so that the job runs although it discloses this",
    "chance": "the score of an attacker that has received nothing",
}
"""Terms of the page, for owners of data who read no formulas."""

_HOW = {"strong": "can tell", "some": "can often tell", "weak": "can guess a little better than by chance"}
_AMOUNT = {"strong": "most of", "some": "much of", "weak": "a little of"}
_RARE_VALUES = "rare values"  # the attack that concerns only rows with rare values, so it gets a sentence of its own
_UNSENT = "labels, without a message"
_SENTENCES = {  # for each kind of data that an attack targets: the beginning of its sentence in the summary
    _RARE_VALUES: "{attacker} {how} the label of {lead} for rows with rare values in its columns {figure}.",
    "labels": "{attacker} {how}, for each person, the label of {lead} {figure}.",
    _UNSENT: "{attacker} {how}, for each person, the label of {lead} from its own columns and a few labels, without "
    "any message {figure}.",
    "part of f": "{attacker} can recover {amount} another party's part of the scores {figure}.",
    "one column": "{attacker} can recover {amount} one column of another party {figure}.",
    "column": "{attacker} can recover {amount} the data in the others' columns {figure}.",
    "trained on": "{attacker} {how} whom the model was trained on {figure}.",
}


def summary(audit: Audit) -> list[str]:
    """Return the result in sentences.

    There is one sentence for each attacker and each kind of target, about the best attack. Then follow the attacks that
    do not exceed chance, by name, and for each party with labels the labels that rare values in others' columns
    disclose.
    """
    best: dict[tuple[str, str], Inference] = {}
    for inference in audit.inferences:
        key = inference.attacker, _target(inference)
        best[key] = max(best.get(key, inference), inference, key=lambda candidate: candidate.reach)
    ranked = sorted(best.values(), key=lambda inference: inference.reach, reverse=True)
    quiet = dict.fromkeys(
        f"{inference.name} ({inference.attacker})" for inference in audit.inferences if not inference.above_chance
    )
    lines = [
        _SENTENCES[_target(inference)].format(
            attacker=_subject(inference.attacker),
            how=_HOW[inference.strength],
            amount=_AMOUNT[inference.strength],
            lead=audit.lead,
            figure=f"({inference.figure})",
        )
        for inference in ranked
        if inference.above_chance
    ]
    exposed = [f"{name} should know about its labels: {' '.join(text)}." for name, text in audit.exposed_labels.items()]
    if quiet and lines:
        lines.append(f"These attacks did no better than chance: {', '.join(quiet)}.")
    return [*(lines or ["No attack did better than chance."]), *exposed]


def _subject(attacker: str) -> str:
    return attacker[:1].upper() + attacker[1:] if attacker.startswith("any") else f"The party {attacker}"


def _target(inference: Inference) -> str:
    """Return what kind of data an attack targets, as a key of `_SENTENCES`."""
    if inference.name == _RARE_VALUES:
        return _RARE_VALUES
    if "labels" in inference.measures:
        return _UNSENT if inference.unsent else "labels"
    return next(
        (word for word in ("part of f", "one column", "column", "trained on") if word in inference.measures),
        "part of f",
    )


def _sections(audit: Audit) -> Iterator[tuple[str, list[MessageDeclaration], list[str], list[Inference]]]:
    """Yield the sections of the page: for each party its title, received messages, exposed labels and attacks.

    The last section has the attacks that any party can carry out.
    """
    for name, role in audit.roles.items():
        messages = [item for item in audit.declared if item.receiver == role]
        inferences = [inference for inference in audit.inferences if inference.attacker == name]
        yield f"{name} ({role})", messages, audit.exposed_labels.get(name, []), inferences
    yield ANYONE, [], [], [inference for inference in audit.inferences if inference.attacker == ANYONE]


ANYONE = "any party"
_SKIPPED = "Attacks that do not apply"


def text(audit: Audit) -> str:
    """Return the page as text for a terminal of 80 columns."""
    head = [f"Audit of {audit.label}", *(f"{name}: {fact}" for name, fact in audit.facts.items())]
    lines = [line for entry in head for line in _wrap(entry, "", "  ")]
    lines += ["", *_wrap(f"{audit.verdict[:1].upper()}{audit.verdict[1:]}.", "")]
    lines += [line for entry in [*audit.exceeding, *audit.failed] for line in _wrap(entry, "  ", "    ")]
    lines += [line for sentence in summary(audit) for line in _wrap(sentence, "  ")]
    if audit.outputs:
        table = learned_table(list(audit.roles), audit.outputs)
        lines += ["", LEARNED_TITLE]
        lines += table_lines(table)
    for title, messages, exposed, inferences in _sections(audit):
        lines += ["", title] if title != ANYONE else []
        for item in messages:
            lines += _wrap(f"{item.message.__name__} from {item.sender}: {item.reveals}", "  receives  ", " " * 12)
        for index, entry in enumerate(exposed):
            lines += _wrap(entry, f"  {'opens' if index == 0 else '':<9} ", " " * 12)
        lines += [""] if inferences else []
        for inference in inferences:
            word = "EXCEEDS THE DECLARATION" if inference.exceeds else inference.strength
            lines += _wrap(f"{inference.name}: {word}", "  ")
            lines.append(
                f"    real messages {inference.real:.3f}, declared output alone {inference.simulated:.3f}, "
                f"chance {inference.chance:.3f}"
            )
            lines += _wrap(f"{inference.measures}; remedy: {inference.remedy}", "    ")
            lines += _wrap(inference.detail, "    ")
    for title, entries in (("Leaks", audit.leaks), (_SKIPPED, audit.skipped)):
        if entries:
            lines += ["", title, *(line for entry in entries for line in _wrap(entry, "  ", "    "))]
    lines += [
        "",
        *_wrap(
            f"{audit.tests} p-values on transcripts and simulated views, attacks over {audit.seeds} seeds, "
            f"{audit.seconds:.0f} s.",
            "",
        ),
        *_wrap(
            "The first score is that of an attacker with the real messages. The second is that of an attacker with its "
            "declared output alone: its own gradients, or the sums that it collects, before rounding. The strength in "
            "words is that of the larger score, or of its distance from chance if a ranking may be reversed.",
            "",
        ),
    ]
    return "\n".join(lines)


def _received(messages: Sequence[MessageDeclaration]) -> str:
    rows: list[list[markup.Cell]] = [[item.message.__name__, item.sender, str(item.reveals)] for item in messages]
    if not rows:
        return '<p class="soft">Receives nothing after the handshake.</p>'
    return markup.details("Messages that it receives", _stack(["message", "from", "declared to reveal"], rows))


def _wrap(line: str, indent: str, hang: str | None = None) -> list[str]:
    return paragraph(line, WIDTH, indent=indent, hang=hang)


def _declared(audit: Audit) -> list[str]:
    """Return the section with everything that a complete run discloses, as in the consent sheet."""
    if not audit.outputs:
        return []
    table = learned_table(list(audit.roles), audit.outputs)
    cells = markup.table(table.heads, table.rows, figures=table.right, stacked=True)
    note = f"{learned_note(audit.outputs)} {SIZES_TEXT}"
    return [markup.section(LEARNED_TITLE, cells, f'<p class="soft">{escape(note)}</p>')]


def html(audit: Audit) -> str:
    """Return the page as one HTML file."""
    parts = [
        f'<h1>What each party could infer</h1><p class="soft">{escape(audit.label)}</p>',
        markup.terms(audit.facts),
        f'<div class="verdict {audit.level}">{escape(audit.verdict[:1].upper() + audit.verdict[1:])}.</div>',
        markup.section("In plain words", markup.items(summary(audit)), markup.items([*audit.exceeding, *audit.failed])),
        *_declared(audit),
        '<p class="soft key">Scores: <i class="real"></i>from the real messages'
        '<i class="sim"></i>from the declared output alone <b>&nbsp;|</b> chance. The strength in words is that of the '
        "larger score, or of its distance from chance if a ranking may be reversed.</p>",
    ]
    for title, messages, exposed, inferences in _sections(audit):
        received = "" if title == ANYONE else _received(messages)
        labels = f"<p><strong>Opened of its labels</strong> {escape(' '.join(exposed))}</p>" if exposed else ""
        if inferences or title != ANYONE:
            heads = ["could infer", "", "score", "how strongly", "remedy"]
            scores = _stack(heads, [_score_row(inference) for inference in inferences])
            parts.append(markup.section("Any party" if title == ANYONE else title, labels, scores, received))
    leaks = [markup.section("Leaks named by the checks of the job", markup.items(audit.leaks))] if audit.leaks else []
    skipped = markup.details(_SKIPPED, markup.items(audit.skipped)) if audit.skipped else ""
    method = [
        "<p>Every message of two short runs was compared with its declaration. Each role's view was",
        f"compared with a view that is simulated from its declared output ({audit.tests} p-values). The attacks were",
        f"carried out on whole runs over {audit.seeds} seeds, once with the real messages and once with the declared",
        "output alone: the party's own gradients, or the sums that it collects. All parties are assumed to follow the",
        f"protocol and to analyse what they receive. The audit took {audit.seconds:.0f} s.</p>",
    ]
    folded = markup.details("Method", *method), markup.details("Terms", markup.terms(GLOSSARY)), skipped
    return markup.page("Audit", [*parts, *leaks, markup.section("Details", *folded)])


def _stack(heads: list[str], rows: list[list[markup.Cell]]) -> str:
    return markup.table(heads, rows, stacked=True) if rows else ""


def _score_row(inference: Inference) -> list[markup.Cell]:
    """Return the cells of an attack: its target, its scores as bars and as numbers, its strength and its remedy."""

    def share(value: float) -> str:
        return f"{100 * min(1.0, max(0.0, value)):.1f}%"

    mark = f"<b style='left: {share(inference.chance)}'></b>"
    bars = (
        f"<div class='bar'><i class='{kind}' style='width: {share(value)}'></i>{mark}</div>"
        for kind, value in (("real", inference.real), ("sim", inference.simulated))
    )
    strength = inference.strength
    kind, word = ("exceeds", "exceeds the declaration") if inference.exceeds else (strength, strength)
    return [
        Markup(
            f"<strong>{escape(inference.name)}</strong><br><span class='soft'>{escape(inference.measures)}"
            f"<br>{escape(inference.detail)}</span>"
        ),
        Markup("".join(bars)),
        Markup(f"{inference.real:.3f}<br>{inference.simulated:.3f}"),
        Markup(f"<span class='tag {kind}'>{word}</span>"),
        inference.remedy,
    ]
