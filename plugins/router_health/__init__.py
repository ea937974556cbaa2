"""Takes failing workers out and brings them back."""
