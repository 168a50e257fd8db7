"""What clients need of threads and loops: tasks, a lock, lines that are logged, records at exit."""
