"""What a crowd of clients saw, from what its processes say."""

from bench.many_clients import CLIENTS, together


def test_latencies_of_all_processes_count_and_connections_are_those_of_one_client() -> None:
    half = CLIENTS // 2
    run = together(
        [
            {"latencies_ms": [1.0, 2.0], "connections": {"9092": half, "9093": CLIENTS}},
            {"latencies_ms": [3.0], "connections": {"9093": CLIENTS}},
        ]
    )
    assert run.latencies_ms == [1.0, 2.0, 3.0]
    assert run.connections == {"9092": 0.5, "9093": 2.0}
