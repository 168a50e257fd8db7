"""The Kubernetes operator: keeps clusters and topics as their resources say.

`model` says what should be there (pure), `plan` what to do next (pure), `kube` talks to the API
server, `reconcile` carries the plans out, `handlers` receives changes. Everything is
level-triggered: a change only names the resource to look at again, never what to do. So a change
that was missed, or received twice, or made while the operator was away, ends in the same state.
"""
