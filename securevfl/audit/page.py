"""An audit as one page: for a terminal, and as HTML that needs no other file."""

from __future__ import annotations

import textwrap

from securevfl.audit.findings import Audit, Inference
from securevfl.display import html as markup
from securevfl.display.html import Markup, escape

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
_ALONE = "rare values"  # the attack on rows that stand nearly alone, which speaks of these rows and of no others
_FOUND = {"strong": "most of", "some": "much of", "weak": "a little of"}


def summary(audit: Audit) -> list[str]:
    """Summarise in a sentence what each party can infer of each kind of thing, by its best attack.

    The attacks that found no more than chance follow, by name; then, for whose labels it is, what rows that stand
    nearly alone in others' columns open of them.
    """
    best: dict[tuple[str, str], Inference] = {}
    for each in audit.inferences:
        held = best.setdefault((each.who, _about(each)), each)
        if each.reach > held.reach:
            best[each.who, _about(each)] = each
    found = [each for each in sorted(best.values(), key=lambda each: each.reach, reverse=True) if each.above_chance]
    quiet = dict.fromkeys(
        f"{inference.name} ({inference.who})" for inference in audit.inferences if not inference.above_chance
    )
    lines = [_sentence(each, audit.lead) for each in found]
    opened = [f"What {name} should know of its labels: {' '.join(each)}." for name, each in audit.opens.items()]
    if quiet and lines:
        lines.append(f"No more than chance was found by: {', '.join(quiet)}.")
    return [*(lines or ["No attack that was tried found more than chance."]), *opened]


def _about(each: Inference) -> str:
    if each.name == _ALONE:
        return "rows that stand alone"
    if "labels" in each.what:
        return "labels, without a message" if each.unsent else "labels"
    if "part of f" in each.what:
        return "parts"
    if "column" in each.what:
        return "columns"
    return "membership" if "trained on" in each.what else "parts"


def _sentence(each: Inference, lead: str) -> str:
    """Say in a sentence what an attack that found something means."""
    who = each.who[:1].upper() + each.who[1:] if each.who.startswith("any") else f"The party {each.who}"
    found, figure = _FOUND[each.strength], f"({each.figure})"
    match _about(each):
        case "rows that stand alone":
            return f"{who} {_HOW[each.strength]} the label of {lead} of rows with rare values in its columns {figure}."
        case "labels":
            return f"{who} {_HOW[each.strength]}, for each person, the label of {lead} {figure}."
        case "labels, without a message":
            from_what = "from its own columns and a few labels, without any message"
            return f"{who} {_HOW[each.strength]}, for each person, the label of {lead} {from_what} {figure}."
        case "columns":
            return f"{who} can find {found} what is in the others' columns {figure}."
        case "membership":
            return f"{who} {_HOW[each.strength]} whom the model was trained on {figure}."
    return f"{who} can find {found} another party's part of the scores {figure}."


_SKIPPED = "Attacks that were not carried out"


def text(audit: Audit, width: int = 100) -> str:
    """Lay the page out for a terminal."""
    lines = [f"Audit of {audit.label}", *(f"{name}: {fact}" for name, fact in audit.facts.items())]
    lines += ["", audit.verdict]
    lines += [f"  {line}" for line in [*audit.exceeding, *audit.failed]]
    lines += [line for each in summary(audit) for line in _wrap(each, width, "  ")]
    for name, role in audit.roles.items():
        lines += ["", f"{name} ({role})"]
        for item in audit.declared:
            if item.receiver == role:
                lines.append(f"  receives  {item.message.__name__} from {item.sender}: {item.reveals}")
        opened = audit.opens.get(name, [])
        lines += [f"  {'opens' if first == 0 else '':<9} {line}" for first, line in enumerate(opened)]
        for each in _of(audit, name):
            lines += _inference(each, width)
    for each in _of(audit, "any party"):
        lines += ["", *_inference(each, width)]
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


def _of(audit: Audit, who: str) -> list[Inference]:
    return [inference for inference in audit.inferences if inference.who == who]


def _inference(each: Inference, width: int) -> list[str]:
    word = "EXCEEDS WHAT IS DECLARED" if each.exceeds else each.strength
    figures = f"{each.real:.3f}   what is declared alone {each.simulated:.3f}   chance {each.chance:.3f}"
    return [
        f"  {each.name:<19} {figures}   {word}",
        *_wrap(f"{each.what}; less by: {each.remedy}", width, " " * 22),
        *_wrap(each.detail, width, " " * 22),
    ]


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
    for name, role in audit.roles.items():
        opened = " ".join(audit.opens.get(name, []))
        said = f"<p><strong>Opened of its labels</strong> {escape(opened)}</p>" if opened else ""
        parts.append(markup.section(f"{name} ({role})", _received(audit, role), said, _scores(_of(audit, name))))
    shared = _of(audit, "any party")
    parts += [markup.section("Any party", _scores(shared))] if shared else []
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


def _received(audit: Audit, role: str) -> str:
    rows = [[x.message.__name__, x.sender, str(x.reveals)] for x in audit.declared if x.receiver == role]
    if not rows:
        return '<p class="soft">Receives nothing after the handshake.</p>'
    return f'<div class="stack">{markup.table(["receives", "from", "declared to reveal"], rows)}</div>'


def _scores(inferences: list[Inference]) -> str:
    if not inferences:
        return ""
    rows = [
        [
            Markup(
                f"<strong>{escape(inference.name)}</strong><br><span class='soft'>{escape(inference.what)}"
                f"<br>{escape(inference.detail)}</span>"
            ),
            Markup(_bar(inference)),
            Markup(f"{inference.real:.3f}<br>{inference.simulated:.3f}"),
            _tag(inference),
            inference.remedy,
        ]
        for inference in inferences
    ]
    heads = ["could infer", "", "score", "how strongly", "what would make it less"]
    return f'<div class="stack">{markup.table(heads, rows)}</div>'


def _bar(each: Inference) -> str:
    def share(value: float) -> str:
        return f"{100 * min(1.0, max(0.0, value)):.1f}%"

    mark = f"<b style='left: {share(each.chance)}'></b>"
    return (
        f"<div class='bar'><i class='real' style='width: {share(each.real)}'></i>{mark}</div>"
        f"<div class='bar'><i class='sim' style='width: {share(each.simulated)}'></i>{mark}</div>"
    )


def _tag(each: Inference) -> Markup:
    kind = "exceeds" if each.exceeds else each.strength
    word = "exceeds what is declared" if each.exceeds else each.strength
    return Markup(f"<span class='tag {escape(kind)}'>{escape(word)}</span>")
