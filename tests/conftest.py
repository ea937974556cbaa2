"""What holds for every test."""

from hypothesis import settings

settings.register_profile("suite", deadline=None, database=None)
settings.load_profile("suite")
