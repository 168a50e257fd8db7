"""All attacks, by name."""

from typing import Final

from tests.abuse import drpc, http2, kafka, pages, requests, tls, tokens
from tests.abuse.attack import Attack

ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack
    for module in (tls, http2, drpc, kafka, tokens, requests, pages)
    for attack in module.ATTACKS
}
