"""What every client needs of its process: clocks, pauses, locks, tasks, forks."""
