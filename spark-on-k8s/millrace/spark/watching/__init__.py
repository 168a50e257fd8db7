"""Shows how streaming queries do: metrics, progress, positions."""
