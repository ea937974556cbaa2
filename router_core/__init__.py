"""A passthrough router between RL rollouts and inference workers, built of hooks and plugins."""
