"""Whether the seed alone fixes an episode: each check changes one thing, and nothing may follow from it."""

from __future__ import annotations

from roll.certificates.checks.finding import Question, check
from roll.certificates.episodes import Episode
from roll.certificates.evidence import Evidence
from roll.certificates.records import Finding

_USE_THE_SEED = "Call super().reset(seed=seed) and draw from self.np_random only."


def difference(left: list[Episode], right: list[Episode]) -> str:
    """Say where the same episodes differ for the first time; empty where they do not."""
    others = {episode.seed: episode for episode in right}
    for episode in left:
        other = others.get(episode.seed)
        if other is None:
            continue
        place = f"With seed {episode.seed}"
        if episode.first[0] != other.first[0]:
            return f"{place} the first observation was {episode.first[1]!r} and {other.first[1]!r}."
        for number, (one, two) in enumerate(zip(episode.steps, other.steps, strict=False), start=1):
            if not one.same_as(two):
                return (
                    f"{place} step {number} gave {one.excerpt!r}, reward {one.reward:g} and "
                    f"{two.excerpt!r}, reward {two.reward:g}."
                )
        if (len(episode.steps), episode.ended) != (len(other.steps), other.ended):
            return (
                f"{place} the episode was {episode.ended} after {len(episode.steps)} steps and {other.ended} after "
                f"{len(other.steps)}. {episode.error or other.error}"
            )
    return ""


def _compared(
    evidence: Evidence, question: Question, probe: str, part: str, fix: str, *, base: tuple[str, str] | None = None
) -> Finding:
    """Compare the episodes of a probe with those of plain play."""
    missing = question.without(evidence, "play", probe)
    if missing is not None:
        return missing
    before, after = evidence.episodes(*(base or ("play", "episodes"))), evidence.episodes(probe, part)
    seen = difference(before, after)
    if probe != "process" and leaks(evidence):
        return question.skipped("Cannot be told: equal seeds differ in any case (seeds.process).")
    if seen:
        return question.failed(seen, fix)
    return question.passed(f"{min(len(before), len(after))} episodes were the same, step by step.")


def leaks(evidence: Evidence) -> bool:
    """Whether equal seeds differ in any case, so that no other difference says anything."""
    return bool(difference(evidence.episodes("play"), evidence.episodes("process")))


@check("seeds.process", "A seed gives the same episode in another process")
def process(evidence: Evidence, question: Question) -> Finding:
    """The same in another process."""
    return _compared(evidence, question, "process", "episodes", _USE_THE_SEED)


@check("seeds.hash", "… with another hash seed of Python (PYTHONHASHSEED)")
def hash_seed(evidence: Evidence, question: Question) -> Finding:
    """The same with another hash seed."""
    fix = "Do not let the order of a set or hash() of a text decide: sort it, or use zlib.crc32."
    return _compared(evidence, question, "hash", "episodes", fix)


@check("seeds.global_random", "… whatever the random generators hold that everybody shares")
def shared_generators(evidence: Evidence, question: Question) -> Finding:
    """The same whatever random and np.random hold."""
    fix = f"It draws from random or np.random. {_USE_THE_SEED}"
    return _compared(evidence, question, "shared", "episodes", fix)


@check("seeds.clock", "… at another time of another day", "hash", "clock")
def clock(evidence: Evidence, question: Question) -> Finding:
    """The same at another time."""
    fix = "It looks at the clock: give the time as an option, or count steps instead of seconds."
    # Both were played with the same hash seed, so that only the clock differs.
    return _compared(evidence, question, "clock", "episodes", fix, base=("hash", "episodes"))


@check("seeds.order", "… after other episodes, in another order")
def order(evidence: Evidence, question: Question) -> Finding:
    """The same after other episodes."""
    fix = "Something outlives the episode: a class attribute, a module's variable, a cache or a file."
    return _compared(evidence, question, "play", "again", fix)


@check("seeds.reset", "reset(seed=…) begins the same episode in a used environment", "reuse")
def reset(evidence: Evidence, question: Question) -> Finding:
    """The same in an environment that was used before."""
    fix = f"reset must put back everything that an episode changes. {_USE_THE_SEED}"
    first, second = evidence.episodes("reuse", "first"), evidence.episodes("reuse", "second")
    seen = difference(first, second)
    if seen and not leaks(evidence):
        return question.failed(seen, fix)
    return _compared(evidence, question, "reuse", "second", fix)


@check("groups.start", "Members of a group begin alike", "starts")
def start(evidence: Evidence, question: Question) -> Finding:
    """Members of a group begin alike."""
    groups = evidence.value("starts")["groups"]
    for seed, firsts in enumerate(groups):
        for member, (found, shown, rules, told) in enumerate(firsts[1:], start=2):
            if (found, rules) != (firsts[0][0], firsts[0][2]):
                before, after = (firsts[0][1], shown) if found != firsts[0][0] else (firsts[0][3], told)
                return question.failed(
                    f"With seed {seed} the first member saw {before!r} and member {member} {after!r}.",
                    f"Their scores are compared with one another, so they need the same start. {_USE_THE_SEED}",
                )
    different = len({firsts[0][0] for firsts in groups})
    return question.passed(
        f"{len(groups)} groups of {len(groups[0])}; the groups began in {different} different "
        f"state{'' if different == 1 else 's'}."
    )


CHECKS = (process, hash_seed, shared_generators, clock, order, reset, start)
