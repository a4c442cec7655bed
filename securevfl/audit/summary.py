"""What an audit found, for people who bring data and read no formulas; and the words that its page uses."""

from __future__ import annotations

from securevfl.audit.findings import Audit, Inference

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
