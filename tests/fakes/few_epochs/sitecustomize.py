"""Lets the epochs of transactional producers run out after two, in every program of this checkout.

Python imports this module by its name at the start of a program, if its folder is on the path:

    PYTHONPATH=tests/fakes/few_epochs python -m pytest tests/integration/test_transactions.py

It goes for the brokers that tests start, too. The largest epoch is no setting of Millrace: a later
start with a larger or smaller one is safe, but nobody needs it.
"""

from typing import Final

EPOCH_MAX: Final = 2

try:
    from millrace.core.coordinator.transactions.config import TransactionsConfig
except ImportError:  # A release that has no transactions, or another program's Python.
    pass
else:
    defaults = TransactionsConfig.__init__.__kwdefaults__
    assert defaults is not None
    defaults["epoch_max"] = EPOCH_MAX
