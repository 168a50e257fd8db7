"""The metrics pages of brokers, as Prometheus reads them."""

from collections import defaultdict
from collections.abc import Iterable
from urllib.request import urlopen

TIMEOUT_S = 10


def samples(addresses: Iterable[str]) -> dict[str, float]:
    """Return the samples of all brokers by their names with labels, added up."""
    found: defaultdict[str, float] = defaultdict(float)
    for address in addresses:
        with urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as page:
            lines = page.read().decode().splitlines()
        for line in lines:
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name] += float(value)
    return dict(found)


def appended_bytes(addresses: Iterable[str], topic: str) -> float:
    """Return the bytes of batches that were appended to a topic."""
    name = f'millrace_topic_appended_bytes_total{{topic="{topic}"}}'
    return samples(addresses).get(name, 0.0)
