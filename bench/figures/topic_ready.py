"""Topics are applied: seconds until one is Ready, the median; and until 500 at once are."""

from bench.comparisons.kubernetes_topics import FIGURES, measure
from bench.measure import figures

if __name__ == "__main__":
    figures(FIGURES, wanted="topic_ready", measure=measure)
