"""The web page: a cluster, its topics with their records, groups and quotas, to read in a browser.

It shows and never changes: it stands over the public client library, and answers only GET and HEAD.
What it shows comes from strangers, so everything reaches a page through `markup`, which escapes it.
Pages are HTML from the server, with one style sheet and no script at all.
"""
