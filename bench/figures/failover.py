"""A leader dies by kill -9: seconds until its partition acknowledges a write again, the median."""

from bench.comparisons.failover import FIGURES, measure
from bench.measure import figures

if __name__ == "__main__":
    figures(FIGURES, wanted="failover", measure=measure)
