"""Addresses as they are written."""


def host_port(host: str, port: int | str) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
