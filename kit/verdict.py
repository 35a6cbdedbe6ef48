"""What the numbers say, in words. Pure: a `compare` frame in, sentences out.

Conventions, not statistics: less than 5 % either way is "no clear difference", and an
accept length that moves by more than 10 % over the concurrencies is pointed out.
"""

from __future__ import annotations

import math

import pandas as pd

from kit.analysis import ESTIMATED
from kit.seams import LEAST_ACCEPT_LENGTH

CLOSE = 0.05
DRIFT = 0.10
LOOKED_UP = ("ngram", "suffix")     # what is found depends on the text: no drafter to blame
ALGORITHMS = {"ngram": "n-gram", "draft": "draft model", "eagle": "EAGLE", "eagle3": "EAGLE-3", "mtp": "MTP",
              "dflash": "DFlash", "suffix": "suffix"}
SINGLE_RUN = (f"One run each, no interval: the numbers say what happened once. Less than {CLOSE:.0%} either way is "
              "called no clear difference, by convention.")
MAY_DIFFER = ("Greedy decoding should repeat the baseline; a batch of several tokens adds up in another order, so a "
              "near tie can fall the other way (numerics). A faulty verification would look the same from here.")


def label(arm: str, algorithm: str) -> str:
    """The arm as a reader knows it.

    >>> label("eagle3", "eagle3"), label("eagle3-long", "eagle3"), label("baseline", "none")
    ('EAGLE-3', 'eagle3-long (EAGLE-3)', 'baseline')
    """
    title = ALGORITHMS.get(algorithm, "")
    return title if arm == algorithm and title else f"{arm} ({title})" if title else arm


def word(speedup: float) -> str:
    """faster | slower | no clear difference | cannot tell

    >>> word(1.3), word(0.97), word(float("nan"))
    ('faster', 'no clear difference', 'cannot tell')
    """
    if math.isnan(speedup):
        return "cannot tell"
    if abs(speedup - 1) < CLOSE:
        return "no clear difference"
    return "faster" if speedup > 1 else "slower"


def headline(frame: pd.DataFrame, baseline: str = "baseline") -> str:
    """One sentence for the whole comparison: each arm, each prompt set, the range of speed-ups."""
    arms = _arms(frame, baseline)
    if arms.empty:
        return "Nothing to compare: no arm beside the baseline was measured."
    said = []
    for (arm, algorithm), of_arm in arms.groupby(["arm", "algorithm"], sort=False):
        sets = [_range(name, cells) for name, cells in of_arm.groupby("prompt_set", sort=False)]
        said.append(f"{label(arm, algorithm)}: {'; '.join(sets)}.")
    return " ".join(said)


def sentences(frame: pd.DataFrame, baseline: str = "baseline") -> list[str]:
    """Every cell in words, then what deserves an explanation, then how far to trust it.

    >>> sentences(pd.DataFrame(columns=["arm"]))
    ['Nothing to compare: no arm beside the baseline was measured.']
    """
    arms = _arms(frame, baseline)
    if arms.empty:
        return [headline(frame, baseline)]
    said = [_cell(row) for row in arms.to_dict("records")]
    for (arm, algorithm, prompt_set), cells in arms.groupby(["arm", "algorithm", "prompt_set"], sort=False):
        said += _drift(f"{label(arm, algorithm)} on {prompt_set}", cells.sort_values("concurrency"))
    differ = [_text(row) for row in arms.to_dict("records") if _differs(row)]
    if differ:
        said.append(f"The text is not the baseline's everywhere: {'; '.join(differ)}. {MAY_DIFFER}")
    elif (arms["compared"].fillna(0) > 0).all():
        said.append("The text is the baseline's on every prompt, in every arm.")
    return [*said, SINGLE_RUN]


def _arms(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    return frame[frame["arm"] != baseline]


def _range(prompt_set: str, cells: pd.DataFrame) -> str:
    """One arm on one prompt set; the concurrencies are named where the verdict depends on them."""
    cells = cells.dropna(subset=["speedup"]).sort_values("concurrency")
    if cells.empty:
        return f"cannot be compared on {prompt_set}"
    parts = []
    for verdict, same in cells.groupby(cells["speedup"].map(word), sort=False):
        low, high = f"{same['speedup'].min():.2f}", f"{same['speedup'].max():.2f}"
        where = "" if len(same) == len(cells) else f" at concurrency {', '.join(map(str, same['concurrency']))}"
        parts.append(f"{verdict}{where} ({low}x)" if low == high else f"{verdict}{where} ({low} to {high}x)")
    return f"on {prompt_set} {', '.join(parts)}"


def _cell(row: dict) -> str:
    who = f"{label(row['arm'], row['algorithm'])} on {row['prompt_set']} at concurrency {row['concurrency']}"
    if math.isnan(row["speedup"]):
        return f"{who} cannot be compared: {row['note'] or 'a number is missing'}."
    verdict = word(row["speedup"])
    said = f"{who} shows no clear difference" if verdict == "no clear difference" else f"{who} is {verdict}"
    failed = f"{row['failed']:.0f} of {row['requests']:.0f} requests failed, and are not in it."
    return " ".join(filter(None, (f"{said}: {row['speedup']:.2f}x.", _why(row), failed if row["failed"] > 0 else "")))


def _why(row: dict) -> str:
    """The price of a step against what it yields."""
    cost, tokens = row["step_cost"], row["tokens_per_step"]
    if row["algorithm"] == "none":
        return "" if math.isnan(cost) else f"Neither drafts; its step costs {cost:.2f} of the baseline's."
    if row["draft_share"] == 0:
        return "Nothing was drafted, so there was nothing to gain."
    if math.isnan(cost):
        return f"Why is not known ({row['note'] or 'a number is missing'})."
    often = row["draft_share"] >= 0.95
    step = f"A verify step of {row['drafts'] + 1:.0f} tokens" if often else "The average step"
    only = " only" if word(tokens / cost) == "slower" else ""
    about = "about " if ESTIMATED in row["note"] else ""
    why = f"{step} costs {about}{cost:.1f} single steps, drafting included, and yields{only} {tokens:.1f} tokens."
    if not often:
        why += f" A draft was found in {row['draft_share']:.0%} of the steps."
    if row["algorithm"] not in LOOKED_UP and row["accept_length"] < LEAST_ACCEPT_LENGTH:
        why += (f" Hardly a draft was accepted (accept length {row['accept_length']:.2f}): the drafter does not fit, "
                "or is loaded as another kind.")
    gain = tokens / cost
    if word(gain) != word(row["speedup"]) and {word(gain), word(row["speedup"])} == {"faster", "slower"}:
        why += f" Token by token that would be {gain:.2f}x: the rest is time to first token and the ends of the run."
    return why


def _drift(who: str, cells: pd.DataFrame) -> list[str]:
    known = cells.dropna(subset=["accept_length"])
    if len(known) < 2:
        return []
    first, last = known.iloc[0], known.iloc[-1]
    if abs(last["accept_length"] / first["accept_length"] - 1) <= DRIFT:
        return []
    verb = "falls" if last["accept_length"] < first["accept_length"] else "rises"
    return [f"{who}: the accept length {verb} from {first['accept_length']:.2f} at concurrency {first['concurrency']} "
            f"to {last['accept_length']:.2f} at {last['concurrency']}. On the same prompts it should not depend on the "
            "concurrency: another mix of prompts, numerics, and a fault in verifying batches are all possible."]


def _differs(row: dict) -> bool:
    return bool(pd.notna(row["compared"]) and row["identical"] < row["compared"])


def _text(row: dict) -> str:
    return (f"{label(row['arm'], row['algorithm'])} {row['identical']}/{row['compared']} on {row['prompt_set']} "
            f"at concurrency {row['concurrency']}")
