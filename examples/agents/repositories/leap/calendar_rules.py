"""Rules of the calendar."""


def leap_year(year):
    """Say whether a year has a 29th of February."""
    return year % 4 == 0
