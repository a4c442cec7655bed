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
_FOUND = {"strong": "most of", "some": "much of", "weak": "a little of"}


def summary(audit: Audit) -> list[str]:
    """A sentence for each party and kind of thing that it can infer, by its best attack; what comes to nothing at the
    end."""
    best: dict[tuple[str, str], Inference] = {}
    for each in audit.inferences:
        held = best.setdefault((each.who, _about(each)), each)
        if _reach(each) > _reach(held):
            best[each.who, _about(each)] = each
    lines = [_sentence(each, audit.lead) for each in sorted(best.values(), key=_reach, reverse=True)]
    quiet = [line for line in lines if not line]
    return [line for line in lines if line] + (
        ["All other attacks that were tried found no more than chance."] if quiet and len(quiet) < len(lines) else []
    ) or ["No attack that was tried found more than chance."]


def _reach(each: Inference) -> float:
    return (each.real - each.chance) / max(1e-9, 1.0 - each.chance)


def _about(each: Inference) -> str:
    if "labels" in each.what:
        return "labels"
    if "column" in each.what:
        return "columns"
    return "membership" if "trained on" in each.what else "parts"


def _sentence(each: Inference, lead: str) -> str:
    """Empty where the attack found nothing."""
    if each.strength not in _HOW:
        return ""
    who = each.who[:1].upper() + each.who[1:] if each.who.startswith("any") else f"The party {each.who}"
    found, figure = _FOUND[each.strength], f"({each.real:.2f}; chance {each.chance:.2f})"
    match _about(each):
        case "labels":
            return f"{who} {_HOW[each.strength]}, for each person, the label of {lead} {figure}."
        case "columns":
            return f"{who} can find {found} what is in the others' columns {figure}."
        case "membership":
            return f"{who} {_HOW[each.strength]} whom the model was trained on {figure}."
    return f"{who} can find {found} another party's part of the scores {figure}."
