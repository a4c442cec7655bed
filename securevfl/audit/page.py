"""An audit as one page: for a terminal, and as HTML that needs no other file."""

from __future__ import annotations

import html as markup
import textwrap
from collections.abc import Mapping

from securevfl.audit.findings import Audit, Inference

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
_HOW = {
    "strong": "can tell",
    "some": "can often tell",
    "weak": "can guess a little better than by chance",
}
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
    found = [each for each in sorted(best.values(), key=lambda each: each.reach, reverse=True) if each.found]
    quiet = dict.fromkeys(f"{each.name} ({each.who})" for each in audit.inferences if not each.found)
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

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --real: #b23a2e; --sim: #3a6ea5;
  --paper: #fff; --ground: #f6f7f9; --faint: #eef1f4; --amber: #fff8e8; --red: #fdf0ee; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ee; --soft: #a3adbb; --line: #3a424e; --paper: #1b2027;
  --ground: #12161b; --faint: #2a313b; --amber: #3a2f14; --red: #43211d; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: var(--ink); margin: 0;
  background: var(--ground); }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .6rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.verdict { border-left: 6px solid #3c8d5a; background: var(--paper); padding: .9rem 1.1rem; margin: 1.25rem 0;
  font-weight: 600; }
.verdict.amber { border-color: #d99a1c; background: var(--amber); }
.verdict.red { border-color: var(--real); background: var(--red); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .9rem; margin: .6rem 0; }
dt { font-weight: 600; color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 6px; padding: .4rem 1.1rem 1rem;
  margin: 1rem 0; }
.card h2 { margin: .7rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; background: var(--paper); }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem .45rem 0; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; } th { font-weight: 600; color: var(--soft); font-size: .85rem; }
td.fig { white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { position: relative; height: .62rem; width: 9rem; background: var(--faint); border-radius: 2px; margin: .2rem 0; }
.bar i { position: absolute; left: 0; top: 0; bottom: 0; border-radius: 2px; }
.bar b { position: absolute; top: -.15rem; bottom: -.15rem; width: 2px; background: var(--ink); }
.real { background: var(--real); } .sim { background: var(--sim); }
.tag { font-size: .8rem; font-weight: 600; padding: .05rem .5rem; border-radius: 9px; background: var(--faint); }
.tag.strong { background: var(--red); } .tag.some { background: var(--amber); }
.tag.exceeds { background: var(--real); color: #fff; }
.key span { display: inline-block; width: .8rem; height: .6rem; margin: 0 .3rem 0 .9rem; }
@media (max-width: 40rem) {
  main { padding: 1rem .7rem 3rem; }
  table, tbody, tr, td { display: block; width: 100%; } th { display: none; }
  td { border: 0; padding: .15rem 0; overflow-wrap: anywhere; } tr { border-bottom: 1px solid var(--line); }
  td.fig { white-space: normal; } dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; }
}
@media print { body { background: #fff; } }
"""


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
            lines += ["", title, *(line for each in entries for line in _wrap(each, width, "  "))]
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
    return [each for each in audit.inferences if each.who == who]


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
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit</title><style>{_STYLE}</style></head><body><main>",
        f'<h1>What each party could infer</h1><p class="soft">{_say(audit.label)}</p>',
        _terms(audit.facts),
        f'<div class="verdict {audit.level}">{_say(audit.verdict[:1].upper() + audit.verdict[1:])}.</div>',
        f"<h2>In plain words</h2>{_list(summary(audit))}",
        _list([*audit.exceeding, *audit.failed]),
        '<p class="soft key">Scores: <span class="real"></span>from the real messages'
        '<span class="sim"></span>from what is declared alone <b>&nbsp;|</b> chance. Words go by the larger of both, '
        "and by the distance from chance where a score may be turned over.</p>",
    ]
    for name, role in audit.roles.items():
        parts.append(f'<section class="card"><h2>{_say(name)} <span class="soft">({role})</span></h2>')
        opened = audit.opens.get(name, [])
        parts += [_received(audit, role), _opened(opened), _scores(_of(audit, name)), "</section>"]
    shared = _of(audit, "any party")
    if shared:
        parts += ['<section class="card"><h2>Any party</h2>', _scores(shared), "</section>"]
    if audit.leaks:
        parts += ["<h2>Leaks named by the job's guards</h2>", _list(audit.leaks)]
    if audit.skipped:
        parts += [f"<h2>{_SKIPPED}</h2>", _list(audit.skipped)]
    parts += [
        "<h2>How this was found</h2><p>Every message of two short runs was held against its declaration; each role's",
        f"view was compared with one simulated from its declared output ({audit.tests} p-values); the attacks were",
        f"carried out on whole runs over {audit.seeds} seeds, once with the real messages and once with no more than",
        "the party's own gradients, or the sums it collects. Parties follow the protocol and study what they",
        f"receive. It took {audit.seconds:.0f} s.</p>",
        f"<h2>Words</h2>{_terms(GLOSSARY)}",
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _say(value: str) -> str:
    return markup.escape(value)


def _terms(terms: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{_say(term)}</dt><dd>{_say(text)}</dd>" for term, text in terms.items()) + "</dl>"


def _list(lines: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{_say(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _received(audit: Audit, role: str) -> str:
    rows = [
        f"<tr><td>{item.message.__name__}</td><td>{item.sender}</td><td>{_say(str(item.reveals))}</td></tr>"
        for item in audit.declared
        if item.receiver == role
    ]
    if not rows:
        return '<p class="soft">Receives nothing after the handshake.</p>'
    return "<table><tr><th>receives</th><th>from</th><th>declared to reveal</th></tr>" + "".join(rows) + "</table>"


def _opened(lines: list[str]) -> str:
    return f"<p><strong>Opened of its labels</strong> {_say(' '.join(lines))}</p>" if lines else ""


def _scores(inferences: list[Inference]) -> str:
    if not inferences:
        return ""
    rows = [
        f"<tr><td><strong>{_say(each.name)}</strong><br><span class='soft'>{_say(each.what)}</span>"
        f"<br><span class='soft'>{_say(each.detail)}</span></td>"
        f"<td class='fig'>{_bar(each)}</td><td class='fig'>{each.real:.3f}<br>{each.simulated:.3f}</td>"
        f"<td>{_tag(each)}</td><td>{_say(each.remedy)}</td></tr>"
        for each in inferences
    ]
    heads = "<tr><th>could infer</th><th></th><th>score</th><th>how strongly</th><th>what would make it less</th></tr>"
    return f"<table style='margin-top: 1rem'>{heads}{''.join(rows)}</table>"


def _bar(each: Inference) -> str:
    def share(value: float) -> str:
        return f"{100 * min(1.0, max(0.0, value)):.1f}%"

    mark = f"<b style='left: {share(each.chance)}'></b>"
    return (
        f"<div class='bar'><i class='real' style='width: {share(each.real)}'></i>{mark}</div>"
        f"<div class='bar'><i class='sim' style='width: {share(each.simulated)}'></i>{mark}</div>"
    )


def _tag(each: Inference) -> str:
    kind = "exceeds" if each.exceeds else each.strength
    word = "exceeds what is declared" if each.exceeds else each.strength
    return f"<span class='tag {kind}'>{word}</span>"
