"""A leader dies by kill -9: seconds until its partition acknowledges a write again, the p99."""

from bench.comparisons.failover import FIGURES, measure
from bench.measure import figures

if __name__ == "__main__":
    figures(FIGURES, wanted="failover_p99", measure=measure)
