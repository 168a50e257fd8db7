"""What clients need of threads and loops: tasks, locks, forks, logged lines, records at exit."""
