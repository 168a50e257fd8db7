"""All attacks, by name."""

from typing import Final

from tests.abuse import drpc, http2, pages, requests, tls, tokens
from tests.abuse.attack import Attack

ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack
    for module in (tls, http2, drpc, tokens, requests, pages)
    for attack in module.ATTACKS
}
