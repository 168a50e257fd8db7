"""The share of attacks that others hardly notice, and that take bounded memory of the broker.

The attacks are those of `tests/abuse`: each goes on for some seconds against one broker with TLS,
tokens and rules, beside an honest producer and consumer. A round is all attacks; the worst counts.
"""

from bench.measure import Bench, Outcome, say
from bench.processes import summed_up


def measure(bench: Bench) -> Outcome:
    """Carry out all attacks, once a round."""
    rounds = []
    for number in range(1, bench.rounds + 1):
        options = ("--folder", str(bench.directory), "--seconds", str(bench.seconds))
        found = summed_up("tests.abuse", *options)
        rounds.append(found)
        say(f"round {number}/{bench.rounds}: {found['share']:.3f} {found['harm'] or ''}")
    worst = min(rounds, key=lambda found: found["share"])
    return Outcome(
        values={
            "share held off": worst["share"],
            "attacks": worst["attacks"],
        },
        detail={
            "harm": [found["harm"] for found in rounds],
            "times": worst["times"],
            "grown_mib": worst["grown_mib"],
        },
    )
