"""DRPC (storj.io/drpc): the calls of a `.proto` as frames on one TCP or TLS connection."""
