"""What a healthy log tells already: accept length over time, cache pressure, graphs, throughput."""

from __future__ import annotations

from kit.diagnose.start import Start
from kit.findings import Finding
from kit.seams import LEAST_ACCEPT_LENGTH as LOW

ONES = 3            # lines of accept length 1.00 that are no chance any more


def working(start: Start) -> list[Finding]:
    """Findings about the lines that it wrote while it served."""
    s = start.serving
    if not s.first:
        return []
    at = f"lines {s.first} to {s.last}"
    found = [*_accept(start), *_cache(start)]
    read = f" (each {s.every}th was read)" if s.every > 1 else ""
    if s.tokens_per_s is not None:
        found.append(Finding("throughput", "pass", f"{s.tokens_per_s:.1f} tokens/s by its own lines",
                             f"mean of {s.kept} lines{read}; {s.dropped} first after idle dropped, as they count the "
                             "idle time too", evidence=at))
    if s.eager:
        lines = s.kept + s.dropped
        told = "as asked (--disable-cuda-graph)" if start.args.get("disable_cuda_graph") == "True" else \
            "batches larger than the captured ones run so: raise --cuda-graph-max-bs" if s.eager < lines else ""
        found.append(Finding("graphs-off", "warn", f"{s.eager} of {lines} decode lines ran without a CUDA graph", told,
                             "leave --disable-cuda-graph out, unless it is needed", at))
    return found


def _accept(start: Start) -> list[Finding]:
    s = start.serving
    if not s.accepting:
        return []
    at = f"lines {s.first} to {s.last}"
    eagle = start.args.get("speculative_algorithm") == "EAGLE"
    drafter = start.args.get("speculative_draft_model_path", "").lower()
    three = any("Eagle3" in t for t in start.types) or "eagle3" in drafter
    why = "algorithm EAGLE with an EAGLE-3 head: its fc is skipped without an error" if eagle and three else \
        "algorithm EAGLE with an EAGLE-3 head does this without an error; so do a missing d2t and a foreign head"
    fix = "--speculative-algorithm EAGLE3 for an EAGLE-3 head; check the drafter against the target"
    if s.ones == s.accepting:
        if start.args.get("load_format") == "dummy":
            return [Finding("accept-length-one", "warn", "accept length 1.00: nothing was accepted",
                            "the weights are dummies", evidence=at)]
        return [Finding("accept-length-one", "fail" if s.ones >= ONES or (eagle and three) else "warn",
                        f"accept length 1.00 on every line ({s.ones}): not one draft was accepted", why, fix, at)]
    if s.accept_length is None:
        return [Finding("accept-length", "unknown", "only lines after idle bear an accept length", evidence=at)]
    course = s.over_time
    if s.accept_length < LOW:
        return [Finding("accept-length-low", "fail" if eagle and three else "warn",
                        f"accept length {s.accept_length:.2f}: hardly a draft was accepted", why, fix, at)]
    low, high = min(v for _, v in course), max(v for _, v in course)
    return [Finding("accept-length", "pass", f"accept length {s.accept_length:.2f} (windows {low:.2f} to {high:.2f})",
                    f"{s.kept} lines, weighted by running requests; {s.dropped} first after idle dropped",
                    evidence=" ".join(f"{n}:{v:.2f}" for n, v in course))]


def _cache(start: Start) -> list[Finding]:
    s = start.serving
    at = f"lines {s.first} to {s.last}"
    fullest = f"{s.fullest:.0%}" if s.fullest >= 0 else "to an unknown share"
    if start.retracted or s.crowded:
        return [Finding("kv-pressure", "warn", f"the key-value cache was up to {fullest} full, requests were "
                        f"retracted {start.retracted} times, up to {s.longest_queue} waited",
                        "retracted requests are computed again", "fewer --max-running-requests, a shorter context, or "
                        "more memory for the cache", at)]
    if s.fullest >= 0:
        size = f" of {start.tokens} tokens" if start.tokens else ""
        return [Finding("kv-pressure", "pass", f"the key-value cache{size} was at most {fullest} full, "
                        f"up to {s.longest_queue} requests waited", evidence=at)]
    return []
