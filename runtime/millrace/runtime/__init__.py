"""What every process runs on: clocks, threads, loops, connections, pages for Prometheus."""
