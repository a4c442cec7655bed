"""An audit as one page: for a terminal, and as HTML that needs no other file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from securevfl.audit.findings import Audit, Inference
from securevfl.display import html as markup
from securevfl.display.html import Markup, escape
from securevfl.protocols.declarations import MessageDeclaration

# What an audit found, for people who bring data and read no formulas; and the words that its page uses.


GLOSSARY = {
    "AUC": "how well a score tells two kinds of rows apart: 1 always, 0.5 as a coin does",
    "residual": "what the party with the labels sends back each round: how far the model is off, for every row",
    "sealed": "encrypted, so that others compute with it and cannot read it",
    "gradient": "the direction in which a party changes its weights; its own is told to it",
    "forward output": "a party's own part of the score of a row",
    "declared": "stated beforehand, in the consent sheet that every party agrees to",
    "accepted": "named in the job's accepts, so that the job runs although it tells this",
    "chance": "what one who has received nothing would reach",
}
_HOW = {"strong": "can tell", "some": "can often tell", "weak": "can guess a little better than by chance"}
_FOUND = {"strong": "most of", "some": "much of", "weak": "a little of"}
_ALONE = "rare values"  # the attack on rows that stand nearly alone, which speaks of these rows and of no others
_UNSENT = "labels, without a message"
_SAYS = {  # by what an attack is about
    _ALONE: "{who} {how} the label of {lead} of rows with rare values in its columns {figure}.",
    "labels": "{who} {how}, for each person, the label of {lead} {figure}.",
    _UNSENT: "{who} {how}, for each person, the label of {lead} from its own columns and a few labels, without any "
    "message {figure}.",
    "part of f": "{who} can find {found} another party's part of the scores {figure}.",
    "column": "{who} can find {found} what is in the others' columns {figure}.",
    "trained on": "{who} {how} whom the model was trained on {figure}.",
}


def summary(audit: Audit) -> list[str]:
    """Summarise in a sentence what each party can infer of each kind of thing, by its best attack.

    The attacks that found no more than chance follow, by name; then, for whose labels it is, what rows that stand
    nearly alone in others' columns open of them.
    """
    best: dict[tuple[str, str], Inference] = {}
    for each in audit.inferences:
        place = each.attacker, _about(each)
        best[place] = max(best.get(place, each), each, key=lambda inference: inference.reach)
    found = [each for each in sorted(best.values(), key=lambda each: each.reach, reverse=True) if each.above_chance]
    quiet = dict.fromkeys(f"{each.name} ({each.attacker})" for each in audit.inferences if not each.above_chance)
    lines = [
        _SAYS[_about(each)].format(
            who=each.attacker[:1].upper() + each.attacker[1:]
            if each.attacker.startswith("any")
            else f"The party {each.attacker}",
            how=_HOW[each.strength],
            found=_FOUND[each.strength],
            lead=audit.lead,
            figure=f"({each.figure})",
        )
        for each in found
    ]
    opened = [f"What {name} should know of its labels: {' '.join(each)}." for name, each in audit.opens.items()]
    if quiet and lines:
        lines.append(f"No more than chance was found by: {', '.join(quiet)}.")
    return [*(lines or ["No attack that was tried found more than chance."]), *opened]


def _about(each: Inference) -> str:
    if each.name == _ALONE:
        return _ALONE
    if "labels" in each.measures:
        return _UNSENT if each.unsent else "labels"
    return next((word for word in ("part of f", "column", "trained on") if word in each.measures), "part of f")


def _parts_of(audit: Audit) -> Iterator[tuple[str, list[MessageDeclaration], list[str], list[Inference]]]:
    """Yield what both forms of the page have of each party, and last of any: whose it is, messages, what is opened of
    its labels, and attacks."""
    for name, role in audit.roles.items():
        messages = [item for item in audit.declared if item.receiver == role]
        yield (
            f"{name} ({role})",
            messages,
            audit.opens.get(name, []),
            [x for x in audit.inferences if x.attacker == name],
        )
    yield ANYONE, [], [], [inference for inference in audit.inferences if inference.attacker == ANYONE]


ANYONE = "any party"
_SKIPPED = "Attacks that were not carried out"


def text(audit: Audit, width: int = 100) -> str:
    """Lay the page out for a terminal."""
    lines = [f"Audit of {audit.label}", *(f"{name}: {fact}" for name, fact in audit.facts.items())]
    lines += ["", audit.verdict]
    lines += [f"  {line}" for line in [*audit.exceeding, *audit.failed]]
    lines += [line for each in summary(audit) for line in _wrap(each, width, "  ")]
    for title, messages, opened, inferences in _parts_of(audit):
        lines += ["", title] if title != ANYONE else []
        lines += [f"  receives  {item.message.__name__} from {item.sender}: {item.reveals}" for item in messages]
        lines += [f"  {'opens' if first == 0 else '':<9} {line}" for first, line in enumerate(opened)]
        for each in inferences:
            figures = f"{each.real:.3f}   what is declared alone {each.simulated:.3f}   chance {each.chance:.3f}"
            word = "EXCEEDS WHAT IS DECLARED" if each.exceeds else each.strength
            lines += [""] if title == ANYONE else []
            lines.append(f"  {each.name:<19} {figures}   {word}")
            lines += _wrap(f"{each.measures}; less by: {each.remedy}", width, " " * 22)
            lines += _wrap(each.detail, width, " " * 22)
    for title, entries in (("Leaks", audit.leaks), (_SKIPPED, audit.skipped)):
        if entries:
            lines += ["", title, *(line for entry in entries for line in _wrap(entry, width, "  "))]
    lines += [
        "",
        f"{audit.tests} p-values on transcripts and simulated views, attacks over {audit.seeds} seeds, "
        f"{audit.seconds:.0f} s.",
        "Beside each score stands that of an attacker who holds what is declared and no message: its own gradients, or",
        "the sums it collects, before they are rounded. An attacker has both, so words go by the larger, and by the",
        "distance from chance where a score may be turned over.",
    ]
    return "\n".join(lines)


def _wrap(line: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent)


def html(audit: Audit) -> str:
    """Lay the page out as one HTML file."""
    parts = [
        f'<h1>What each party could infer</h1><p class="soft">{escape(audit.label)}</p>',
        markup.terms(audit.facts),
        f'<div class="verdict {audit.level}">{escape(audit.verdict[:1].upper() + audit.verdict[1:])}.</div>',
        f"<h2>In plain words</h2>{markup.items(summary(audit))}",
        markup.items([*audit.exceeding, *audit.failed]),
        '<p class="soft key">Scores: <i class="real"></i>from the real messages'
        '<i class="sim"></i>from what is declared alone <b>&nbsp;|</b> chance. Words go by the larger of both, '
        "and by the distance from chance where a score may be turned over.</p>",
    ]
    for title, messages, opened, inferences in _parts_of(audit):
        rows: list[list[markup.Cell]] = [[item.message.__name__, item.sender, str(item.reveals)] for item in messages]
        received = _stack(["receives", "from", "declared to reveal"], rows)
        if not rows and title != ANYONE:
            received = '<p class="soft">Receives nothing after the handshake.</p>'
        said = f"<p><strong>Opened of its labels</strong> {escape(' '.join(opened))}</p>" if opened else ""
        if inferences or title != ANYONE:
            heads = ["could infer", "", "score", "how strongly", "what would make it less"]
            scores = _stack(heads, [_score(each) for each in inferences])
            parts.append(markup.section("Any party" if title == ANYONE else title, received, said, scores))
    for title, lines in (("Leaks named by the job's guards", audit.leaks), (_SKIPPED, audit.skipped)):
        parts += [f"<h2>{title}</h2>", markup.items(lines)] if lines else []
    parts += [
        "<h2>How this was found</h2><p>Every message of two short runs was held against its declaration; each role's",
        f"view was compared with one simulated from its declared output ({audit.tests} p-values); the attacks were",
        f"carried out on whole runs over {audit.seeds} seeds, once with the real messages and once with no more than",
        "the party's own gradients, or the sums it collects. Parties follow the protocol and study what they",
        f"receive. It took {audit.seconds:.0f} s.</p>",
        f"<h2>Words</h2>{markup.terms(GLOSSARY)}",
    ]
    return markup.page("Audit", parts)


def _stack(heads: list[str], rows: list[list[markup.Cell]]) -> str:
    return f'<div class="stack">{markup.table(heads, rows)}</div>' if rows else ""


def _score(each: Inference) -> list[markup.Cell]:
    """Make the row of an attack: what it is after, its bars, its scores, in a word how strong it is, its remedy."""

    def share(value: float) -> str:
        return f"{100 * min(1.0, max(0.0, value)):.1f}%"

    mark = f"<b style='left: {share(each.chance)}'></b>"
    bars = (
        f"<div class='bar'><i class='{kind}' style='width: {share(value)}'></i>{mark}</div>"
        for kind, value in (("real", each.real), ("sim", each.simulated))
    )
    kind, word = ("exceeds", "exceeds what is declared") if each.exceeds else (each.strength, each.strength)
    return [
        Markup(
            f"<strong>{escape(each.name)}</strong><br><span class='soft'>{escape(each.measures)}"
            f"<br>{escape(each.detail)}</span>"
        ),
        Markup("".join(bars)),
        Markup(f"{each.real:.3f}<br>{each.simulated:.3f}"),
        Markup(f"<span class='tag {kind}'>{word}</span>"),
        each.remedy,
    ]
