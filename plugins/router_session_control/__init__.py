"""Hangs sessions at their next turn, lets them go on, and shows what they are doing."""
