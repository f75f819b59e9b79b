"""Whether the environment keeps to Gymnasium's interface."""

from __future__ import annotations

from roll.certificates.checks.finding import Question, check
from roll.certificates.evidence import Evidence
from roll.certificates.records import Finding


@check("contract.gymnasium", "Gymnasium's own checker accepts it")
def gymnasium(evidence: Evidence, question: Question) -> Finding:
    """What Gymnasium's own checker says."""
    if evidence.about["awaits"]:
        return question.skipped("reset and step are coroutines, which Gymnasium's checker cannot call.")
    missing = question.without(evidence, "gymnasium")
    if missing is not None:
        return missing
    seen = evidence.value("gymnasium")
    if evidence.limit == 1 and "truncates after 1 step" in seen["error"]:
        return question.passed("Accepted, but for its doubts about an episode of one step, which is what it is.")
    if seen["error"]:
        return question.failed(seen["error"], "See gymnasium.utils.env_checker.check_env(env, skip_render_check=True).")
    if seen["warnings"]:
        return question.unsure(f"Accepted, with remarks: {' '.join(seen['warnings'])}")
    return question.passed("Accepted without a remark.")


@check("contract.returned", "reset and step return what training needs", "contract")
def returned(evidence: Evidence, question: Question) -> Finding:
    """What training would refuse."""
    problems = evidence.value("contract")["problems"]
    if problems:
        return question.failed(
            problems[0],
            "reset returns (text, info), step returns (text, reward, terminated, truncated, info); where info has "
            "reward_parts they add up to the reward.",
        )
    return question.passed("Observations are text, rewards finite numbers; reward parts add up to the reward.")


@check("contract.own", "What was returned is not changed afterwards", "contract")
def own(evidence: Evidence, question: Question) -> Finding:
    """Whether what was returned stays as it was."""
    changed = evidence.value("contract")["changed"]
    if changed:
        return question.failed(
            f"It is: {changed[0]}.",
            "Return a new info (and new dicts in it) from every step; training reads them after the next step.",
        )
    return question.passed("Everything that steps returned was the same at the end of the episode.")


CHECKS = (gymnasium, returned, own)
