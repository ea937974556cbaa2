"""What ends the demo with exit status 1."""


class DemoFailure(Exception):
    """Something was not as promised; the message says what."""
